"""Turn bytes into lines of text: compression, encodings, strict decoding."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.files.rows import RECORD_LIMIT
from crmctl.frozen import frozen

GZIP_MAGIC = b"\x1f\x8b"
BUFFER_SIZE = 256 * 1024

FOREIGN: list[tuple[bytes, str, str]] = [
    (b"PK\x03\x04", "a zip archive and no Excel workbook", "unpack the archive first, or save the sheet as CSV (UTF-8)"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "save the sheet as CSV (UTF-8)"),
    (b"BZh", "compressed with bzip2", "unpack it first, for example: bzip2 -dc FILE | crmctl bulk import OBJECT -"),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first, for example: xz -dc FILE | crmctl bulk import OBJECT -"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first, for example: zstd -dc FILE | crmctl bulk import OBJECT -"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack the archive first"),
    (b"Rar!\x1a\x07", "a RAR archive", "unpack the archive first"),
    (b"\x89PNG", "a picture", "type the table into a sheet and save it as CSV"),
    (b"\xff\xd8\xff", "a picture", "type the table into a sheet and save it as CSV"),
    (b"{\\rtf", "a text document (RTF)", "save the table as CSV"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV"),
    (b"%PDF-", "a PDF document", "export the table as CSV"),
    (b"<!doctype html", "an HTML page", "a download that needs a login often saves the login page instead of the file"),
    (b"<html", "an HTML page", "a download that needs a login often saves the login page instead of the file"),
    (b"<?xml", "an XML document", "convert it to CSV or JSONL"),
]
"""First bytes (in lower case for text), the kind of file, and advice to the user."""


def read_start(path: Path, name: str, size: int, *, compressed: bool) -> bytes:
    """Return the first `size` bytes, decompressed if `compressed`."""
    with open_bytes(path, name, compressed=compressed) as stream:
        return stream.read(size)


def refuse_foreign(start: bytes, name: str) -> None:
    """Raise UsageError if the first bytes identify a format that is not a text table."""
    probe = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, kind, hint in FOREIGN:
        if start.startswith(magic) or (magic.startswith(b"<") and probe.startswith(magic)):
            raise UsageError(f"{name} is {kind}, not CSV, TSV, JSONL or JSON", hint=hint, code="unknown_format")


@contextmanager
def open_bytes(path: Path, name: str, *, compressed: bool) -> Iterator[BinaryIO]:
    """Open the file's bytes. Errors in opening, reading or decompressing inside the block become UsageError."""
    try:
        with path.open("rb", buffering=BUFFER_SIZE) as raw:
            if not compressed:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw, mode="rb") as plain, io.BufferedReader(cast(io.RawIOBase, plain), BUFFER_SIZE) as stream:
                yield cast(BinaryIO, stream)
    except EOFError as error:
        raise UsageError(
            f"{name} is cut off: the gzip data ends before its end mark", hint="copy or download the file again", code="unreadable_file"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f"{name} is not intact gzip: {reason(error)}", hint="copy or download the file again", code="unreadable_file"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error


BOMS: list[tuple[bytes, str]] = [
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
"""Byte order marks, longest first: the UTF-32 mark begins with the UTF-16 mark."""

USUAL = [
    *("cp1252", "cp1250", "cp1251", "shift_jis", "gb18030", "big5", "euc_kr", "euc_jp", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("iso8859_15", "koi8_r", "mac_roman", "cp850", "cp437"),
]
"""Encodings of tables, most common first."""

BLOCK = 64 * 1024
SAMPLE = 20_000
"""Number of bytes after an undecodable one used to guess the encoding."""


@frozen
class Encoding:
    """A text encoding by its Python name, and whether the file begins with its byte order mark."""

    name: str
    bom: bool


_LATIN = ("cp1252", "cp1250", "mac_roman", "cp850")
"""Encodings that read the same bytes as Latin letters. Only a person who knows the words can choose among them."""

_WORD = re.compile(r"""[^\s,;|"'(){}\[\]<>:/]{0,20}[^\x00-\x7f\s][^\s,;|"'(){}\[\]<>:/]{0,20}""")
"""A word with a non-ASCII character."""

SHOWN_WORDS = 3
SAMPLED_BLOCKS = 64
"""Number of blocks of a file searched for such words."""

_NOT_OF_FILES = ("idna", "punycode", "undefined")


def find_encoding(start: bytes, declared: str | None) -> Encoding:
    """Return the encoding of a file that begins with `start`: as declared, or by byte order mark, or UTF-8.

    Raises UsageError for a name that is not a text encoding, and for utf-16 or utf-32 without a byte order mark.
    """
    marked = next((name for mark, name in BOMS if start.startswith(mark)), None)
    if declared is None:
        if marked is None and b"\0" in start:
            _refuse_wide(start)
        return Encoding(marked or "utf-8", marked is not None)
    try:
        name = codecs.lookup(declared).name
        if name in _NOT_OF_FILES:
            raise LookupError
        io.TextIOWrapper(io.BytesIO(), encoding=name).close()
    except (LookupError, ValueError):
        raise UsageError(
            f"{declared} is not a text encoding",
            hint="for example utf-8, cp1252, iso-8859-15, utf-16-le, shift_jis",
            code="unknown_encoding",
        ) from None
    if name in ("utf-16", "utf-32"):
        if marked is None or not marked.startswith(name):
            raise UsageError(
                f"the file has no byte order mark, so {name} can be read in two ways",
                hint=f"--encoding {name}-le or {name}-be",
                code="unknown_encoding",
            )
        return Encoding(marked, bom=True)
    if name == "utf-8-sig":
        return Encoding("utf-8", marked == "utf-8")
    return Encoding(name, marked == name)


def _refuse_wide(start: bytes) -> None:
    """Raise UsageError for UTF-16 or UTF-32 without a byte order mark."""
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(start)
        except UnicodeDecodeError:
            continue
        if text and "\0" not in text and 2 * sum(map(str.isascii, text)) > len(text):
            raise UsageError(
                f"the file looks like {name} without a byte order mark: a NUL byte at offset {start.index(0)}",
                hint=f"--encoding {name}",
                code="undecodable",
                details={"offset": start.index(0), "line": 1, "encoding": "utf-8", "likely": name},
            )


@contextmanager
def open_text(path: Path, name: str, encoding: Encoding, *, compressed: bool) -> Iterator[io.TextIOWrapper]:
    """Open the file as text, with its line endings and without the byte order mark.

    Raises UsageError for an undecodable byte, with its offset, its line and a likely encoding.
    """
    try:
        with (
            open_bytes(path, name, compressed=compressed) as stream,
            io.TextIOWrapper(stream, encoding=encoding.name, errors="strict", newline="") as text,
        ):
            if encoding.bom:
                text.read(1)
            yield text
    except UnicodeError:
        refuse_undecodable(path, name, encoding, compressed=compressed)


def read_blocks(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    """Yield blocks of whole lines with their endings. Raises UsageError for a NUL, RejectedError for a line above the record limit."""
    begun, number = "", 1
    while piece := text.read(BLOCK):
        begun += piece
        end = begun.rfind("\n") + 1 or begun.rfind("\r", 0, -1) + 1  # a CR at the end may be half of a CRLF
        if end:
            yield _checked(begun[:end], name, number)
            number += count_lines(begun, 0, end)
            begun = begun[end:]
        elif len(begun) > RECORD_LIMIT:
            break
    if begun:
        yield _checked(begun, name, number)


def _checked(block: str, name: str, number: int) -> str:
    """Return a block that begins on line `number`."""
    if "\0" in block:
        refuse_nul(name, number + count_lines(block, 0, block.index("\0")))
    if len(block) > RECORD_LIMIT:
        for at, line in enumerate(io.StringIO(block, newline=""), number):
            if len(line) > RECORD_LIMIT:
                raise RejectedError(
                    f"{name}: line {at} is longer than {RECORD_LIMIT // 1024 // 1024} MB",
                    hint="is this a table with one record per line?",
                    code="record_too_large",
                )
    return block


class Lines(Iterator[str]):
    """Physical lines of a text with their endings, or the rest of its block of lines at once. Raises the errors of `read_blocks`."""

    def __init__(self, text: io.TextIOWrapper, name: str) -> None:
        self._blocks = read_blocks(text, name)
        self.unread("")

    def __next__(self) -> str:
        while not (line := self._block.readline()):
            self.unread(next(self._blocks))
        return line

    def rest(self) -> str:
        """Return the remaining lines of the block, else the next block; "" at the end of the text."""
        return self._block.read() or next(self._blocks, "")

    def unread(self, block: str) -> None:
        """Continue with the lines of `block`."""
        self._block = io.StringIO(block, newline="")


def refuse_nul(name: str, line: int) -> NoReturn:
    raise UsageError(
        f"{name} holds a NUL character on line {line}",
        hint="a binary file, or UTF-16 without a byte order mark: try --encoding utf-16-le or --encoding utf-16-be",
        code="undecodable",
        details={"line": line},
    )


def count_lines(text: str, start: int = 0, end: int | None = None) -> int:
    """Return the number of line ends (LF, CR or CRLF) in a part of a text."""
    end = len(text) if end is None else end
    count = text.count("\n", start, end)
    if text.find("\r", start, end) >= 0:
        count += text.count("\r", start, end) - text.count("\r\n", start, end)
    return count


def refuse_undecodable(path: Path, name: str, encoding: Encoding, *, compressed: bool) -> NoReturn:
    """Read the file again and raise UsageError with a description of its first undecodable byte."""
    decoder = codecs.getincrementaldecoder(encoding.name)(errors="strict")
    fed, line = 0, 1
    with open_bytes(path, name, compressed=compressed) as stream:
        block = b"\n"
        while block:
            block = stream.read(BLOCK)
            fed += len(block)
            try:
                line += count_lines(decoder.decode(block, final=not block))
            except UnicodeDecodeError as error:
                offset = fed - len(error.object) + error.start
                line += count_lines(error.object[: error.start].decode(encoding.name, errors="ignore"))
                place = f"offset {offset}{' of the unpacked data' if compressed else ''}, line {line}"
                _refuse_byte(name, encoding, error, place, {"offset": offset, "line": line, "encoding": encoding.name})
            except UnicodeError:
                break
    raise UsageError(
        f"{name} cannot be decoded as {encoding.name}, from line {line:,} on", hint="name its encoding: --encoding X", code="undecodable"
    )


def _refuse_byte(name: str, encoding: Encoding, error: UnicodeDecodeError, place: str, details: Mapping[str, object]) -> NoReturn:
    data, at = error.object, error.start
    byte = f"0x{data[at]:02x}" if at < len(data) else "the end"
    start, end = data.rfind(b"\n", 0, at) + 1, data.rfind(b"\n", at, at + SAMPLE)
    sample = bytes(data[start : end + 1 if end > at else at + SAMPLE])  # earlier lines were decodable and give no clue
    likely = likely_encoding(sample, tried=encoding.name)
    hint = "name its encoding: --encoding X"
    if likely is not None:
        may_be = " or ".join(f"{other} ({word!r})" for word, other in _readings(sample, likely).items()) or likely
        hint = f"it may be {may_be}: look at `crmctl bulk inspect {name} --encoding {likely}` before importing with --encoding {likely}"
    raise UsageError(
        f"{name} is not {encoding.name}: byte {byte} at {place}",
        hint=hint,
        code="undecodable",
        details={**details, "likely": likely},
    ) from None


def _readings(sample: bytes, likely: str) -> dict[str, str]:
    """Return the ways to read the word with the most of them, each with its encoding."""

    def of_word(word: str) -> dict[str, str]:
        readings: dict[str, str] = {}
        for encoding in dict.fromkeys([likely, *(_LATIN if likely in _LATIN else ())]):
            with suppress(UnicodeDecodeError):
                readings.setdefault(word.encode(likely).decode(encoding), encoding)
        return {text: encoding for text, encoding in readings.items() if text.isprintable()}

    return max(map(of_word, _WORD.findall(sample.decode(likely, "ignore"))), key=len, default={})


def describe_words(text: io.TextIOWrapper, beginning: str, encoding: str) -> str | None:
    """Return how a declared encoding reads the first words with other letters than those of ASCII. None for Unicode."""
    if encoding.startswith("utf"):
        return None
    words = dict.fromkeys(_WORD.findall(beginning))
    for _ in range(SAMPLED_BLOCKS):
        if len(words) >= SHOWN_WORDS or not (block := text.read(BLOCK)):
            break
        words |= dict.fromkeys(_WORD.findall(block) if not block.isascii() else ())
    return f"{encoding} reads {', '.join(map(repr, [*words][:SHOWN_WORDS]))}" if words else None


def likely_encoding(sample: bytes, *, tried: str) -> str | None:
    """Return a likely encoding of bytes that `tried` cannot decode, for a hint. If several read the same text, return the most common."""
    marked = next((name for mark, name in BOMS if sample.startswith(mark)), None)
    if marked is not None and marked != tried:
        return marked
    if sample.isascii():
        return None
    if tried != "utf-8":
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(sample)
            return "utf-8"
    from charset_normalizer import from_bytes

    others = [name for name in USUAL if name != tried]
    best = from_bytes(sample, cp_isolation=others, enable_fallback=False, preemptive_behaviour=False).best()
    if best is None:
        return None
    return next((name for name in others if name in (best.encoding, *best.could_be_from_charset)), best.encoding)
