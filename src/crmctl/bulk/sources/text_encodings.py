"""Bytes to text lines: finds the encoding, decodes strictly, and says exactly where decoding fails. Never replaces a byte."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crmctl.bulk.sources.bytestream import open_bytes
from crmctl.bulk.sources.rows import RECORD_LIMIT
from crmctl.errors import RejectedError, UsageError

BOMS: list[tuple[bytes, str]] = [
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
"""Longest first: the UTF-32 mark begins with the UTF-16 one."""

USUAL = [
    *("cp1252", "cp1250", "cp1251", "shift_jis", "gb18030", "big5", "euc_kr", "euc_jp", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("iso8859_15", "koi8_r", "mac_roman", "cp850", "cp437"),
]
"""Encodings in which tables are still written, the most usual first."""

BLOCK = 64 * 1024
SAMPLE = 20_000
"""Bytes from an undecodable one on from which another encoding is told."""


@dataclass(frozen=True)
class Encoding:
    """A text encoding as Python names it, and whether the file begins with its byte order mark."""

    name: str
    bom: bool


_OLDER = ("mac_roman", "cp850", "cp437")
"""Encodings whose letters are other characters in cp1252."""

_ODD = re.compile("[A-Za-z]+(Ÿ|\N{REPLACEMENT CHARACTER}|(?<=[a-z])[ŽŠ]|(?<=[a-z])[ˆ‡‰‹ƒ‚„†](?=[a-z]))[A-Za-z]*")
"""A word with a capital, or a sign, in its middle, as cp1252 makes of letters of other encodings."""

_ALIKE = ("cp1252", "cp1250", "mac_roman", "iso8859-1")
"""Encodings with other letters for the same bytes: which one a file has, only somebody who knows its words can tell."""

_WORD = re.compile(r"""[^\s,;|"'(){}\[\]<>:/]{0,20}[^\x00-\x7f\s][^\s,;|"'(){}\[\]<>:/]{0,20}""")
"""A word with a letter, or another sign, that is not ASCII."""

SHOWN_WORDS = 3
SAMPLED_BLOCKS = 64
"""So much of a file is looked through for them."""

_NOT_OF_FILES = ("idna", "punycode", "undefined")


def find_encoding(start: bytes, declared: str | None) -> Encoding:
    """The encoding of a file that begins with `start`: as declared, else by byte order mark, else UTF-8.

    Raises UsageError for a name that is no text encoding, and for utf-16 or utf-32 declared without a mark that gives the byte order.
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
    """Raise UsageError for UTF-16 or UTF-32 without a byte order mark: its order could only be guessed."""
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
    """The file as text with its line endings as they are and without the byte order mark.

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
        raise undecodable(path, name, encoding, compressed=compressed) from None


def read_lines(text: io.TextIOWrapper, name: str) -> Iterator[str]:
    """Physical lines with their endings (LF, CR or CRLF). Raises UsageError for a NUL, RejectedError for a line over the record limit."""
    readline = text.readline
    number = 0
    while line := readline(RECORD_LIMIT + 1):
        number += 1
        if "\0" in line:
            raise nul_error(name, number)
        if len(line) > RECORD_LIMIT:
            raise RejectedError(
                f"{name}: line {number} is longer than {RECORD_LIMIT // 1024 // 1024} MB",
                hint="is this a table with one record per line?",
                code="record_too_large",
            )
        yield line


def nul_error(name: str, line: int) -> UsageError:
    return UsageError(
        f"{name} holds a NUL character on line {line}",
        hint="a binary file, or UTF-16 without a byte order mark: try --encoding utf-16-le or --encoding utf-16-be",
        code="undecodable",
        details={"line": line},
    )


def count_lines(text: str, start: int = 0, end: int | None = None) -> int:
    """Line ends (LF, CR, CRLF each once) in a part of a text."""
    end = len(text) if end is None else end
    count = text.count("\n", start, end)
    if text.find("\r", start, end) >= 0:
        count += text.count("\r", start, end) - text.count("\r\n", start, end)
    return count


def undecodable(path: Path, name: str, encoding: Encoding, *, compressed: bool) -> UsageError:
    """Describe the first undecodable place of a file: reads it once more from the beginning."""
    decoder = codecs.getincrementaldecoder(encoding.name)(errors="strict")
    fed, line = 0, 1
    with open_bytes(path, name, compressed=compressed) as stream:
        while True:
            block = stream.read(BLOCK)
            fed += len(block)
            try:
                line += count_lines(decoder.decode(block, final=not block))
            except UnicodeDecodeError as error:
                offset = fed - len(error.object) + error.start
                line += count_lines(error.object[: error.start].decode(encoding.name, errors="ignore"))
                return _decode_error(name, encoding, error, _Place(offset, line, compressed))
            except UnicodeError:
                return UsageError(
                    f"{name} cannot be decoded as {encoding.name} from line {line:,} on",
                    hint="say which encoding it has: --encoding X",
                    code="undecodable",
                )
            if not block:
                return UsageError(
                    f"{name} cannot be decoded as {encoding.name}", hint="say which encoding it has: --encoding X", code="undecodable"
                )


class _Place(NamedTuple):
    offset: int
    line: int
    is_unpacked: bool


def _decode_error(name: str, encoding: Encoding, error: UnicodeDecodeError, place: _Place) -> UsageError:
    byte = f"0x{error.object[error.start]:02x}" if error.start < len(error.object) else "the end"
    likely = likely_encoding(_lines_from(error.object, error.start), tried=encoding.name)
    if likely is None:
        hint = "say which encoding it has: --encoding X"
    else:
        may_be = _said_readings(_readings(_lines_from(error.object, error.start), likely)) or likely
        hint = f"it may be {may_be}: look at `crmctl bulk inspect {name} --encoding {likely}` before importing with --encoding {likely}"
    unpacked = " of the unpacked data" if place.is_unpacked else ""
    return UsageError(
        f"{name} is not {encoding.name}: byte {byte} at offset {place.offset}{unpacked}, line {place.line}",
        hint=hint,
        code="undecodable",
        details={"offset": place.offset, "line": place.line, "encoding": encoding.name, "likely": likely},
    )


def mistaken_encoding(text: str, encoding: str) -> str | None:
    """What to say where the beginning of a text, decoded without an error, has characters that hardly stand in a word, and another encoding
    has letters there. Latin-1 and cp1252 take nearly every file."""
    if encoding not in ("iso8859-1", "cp1252"):
        return None
    window = text if encoding == "cp1252" else text.encode(encoding).decode("cp1252", "replace")
    for found in _ODD.finditer(window):
        word = text[found.start() : found.end()].encode(encoding)
        place = found.start(1) - found.start()
        likely = next((name for name in _OLDER if word[place : place + 1].decode(name).islower()), None)
        if likely is not None:
            return f"{word.decode(encoding)!r} would be {word.decode(likely)!r} in {likely}: --encoding {likely}"
    if window != text:
        return "it has characters that Latin-1 does not have: --encoding cp1252"
    return None


def samples_of(text: io.TextIOWrapper, beginning: str, encoding: str) -> str | None:
    """What to say of a file that was declared to be of an encoding which no mark confirms: how it reads, and how it would in another."""
    if encoding.startswith("utf"):
        return None
    found = dict.fromkeys(_WORD.findall(beginning))
    for _ in range(SAMPLED_BLOCKS):
        if len(found) >= SHOWN_WORDS or not (block := text.read(BLOCK)):
            break
        if not block.isascii():
            found |= dict.fromkeys(_WORD.findall(block))
    other = "cp1252" if encoding == "cp1250" else "cp1250"
    if encoding in _ALIKE and not any(map(str.isascii, "".join(filter(str.isalpha, "".join(found))))):
        other = likely_encoding("\n".join(found).encode(encoding), tried=encoding) or other  # words of another script
    differ = {word: read for word in found if encoding in _ALIKE and (read := _read_as(word, encoding, other)) not in (None, word)}
    words = [*differ, *(word for word in found if word not in differ)][:SHOWN_WORDS]
    if not words:
        return None
    reads = f"{encoding} reads {', '.join(map(repr, words))}"
    as_other = ", ".join(repr(differ[word]) for word in words if word in differ)
    return f"{reads}; {other} would read {as_other}: if that is right, --encoding {other}" if as_other else reads


def _readings(sample: bytes, likely: str) -> dict[str, str]:
    """How a word of a sample reads in the encodings it may have, the likely one first; a word in which they differ most."""
    names = dict.fromkeys([likely, *(_ALIKE if likely in _ALIKE else ())])
    best, most = dict[str, str](), (False, 0)
    for word in _WORD.findall(sample.decode(likely, "ignore")):
        others = {name: read for name in names if (read := _read_as(word, likely, name)) is not None}
        readings: dict[str, str] = {}
        for name, read in others.items():
            if name == likely or read.isalpha():
                readings.setdefault(read, name)
        telling = (others.get("cp1250") != others.get("cp1252"), len(readings))
        if telling > most:
            most, best = telling, {name: read for read, name in readings.items()}
    return best


def _said_readings(readings: dict[str, str]) -> str:
    *others, last = [f"{name} ({read!r})" for name, read in readings.items()] or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _read_as(word: str, encoding: str, other: str) -> str | None:
    try:
        return word.encode(encoding).decode(other)
    except UnicodeError:
        return None


def _lines_from(data: bytes, place: int) -> bytes:
    """The line of a place and whole ones after it: what comes before could be decoded and tells nothing."""
    start, end = data.rfind(b"\n", 0, place) + 1, data.rfind(b"\n", place, place + SAMPLE)
    return bytes(data[start : end + 1 if end > place else place + SAMPLE])


def likely_encoding(sample: bytes, *, tried: str) -> str | None:
    """A likely encoding of bytes that are not what they were taken for; only ever a hint.

    Several encodings may read the bytes as one text; then it is the most usual of them.
    """
    marked = next((name for mark, name in BOMS if sample.startswith(mark)), None)
    if marked is not None and marked != tried:
        return marked
    if sample.isascii():
        return None
    if tried != "utf-8" and _is_utf8(sample):
        return "utf-8"
    from charset_normalizer import from_bytes

    others = [name for name in USUAL if name != tried]
    best = from_bytes(sample, cp_isolation=others, enable_fallback=False, preemptive_behaviour=False).best()
    if best is None:
        return None
    return next((name for name in others if name in (best.encoding, *best.could_be_from_charset)), best.encoding)


def _is_utf8(sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True
