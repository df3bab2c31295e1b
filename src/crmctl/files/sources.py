"""Open an input file: format, compression, encoding and dialect."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import BinaryIO

from crmctl.errors import UsageError, reason, storage_error
from crmctl.files.delimited import DelimitedSource, separator_of, split_records
from crmctl.files.encodings import (
    GZIP_MAGIC,
    SAMPLE,
    Encoding,
    Lines,
    describe_words,
    find_encoding,
    open_text,
    read_start,
    refuse_foreign,
)
from crmctl.files.rows import QUOTE, Dialect, Format, Source, SourceOptions
from crmctl.frozen import frozen
from crmctl.models.ids import suggestion

CANDIDATES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
SAMPLE_RECORDS = 500
CLEAR_LEAD = 0.1
"""Required lead of the best candidate over the second, as a share of the sampled rows."""


def detect_delimiter(lines: Callable[[], Iterator[str]], name: str) -> str:
    """Return the delimiter of the text. `lines()` reads it from the start. Raises UsageError if two candidates fit."""
    shares: dict[str, float] = {}
    """The share of rows as wide as the header, by the candidates that split the header."""
    splitting = []
    for delimiter in CANDIDATES:
        records = (record for record in split_records(lines(), delimiter) if record.cells is not None)
        sample = [(len(record.cells or ()), record.problem is None) for record in islice(records, 1 + SAMPLE_RECORDS)]
        width, rows = sample[0][0] if sample else 0, sample[1:]
        if width > 1:
            shares[delimiter] = rows.count((width, True)) / len(rows) if rows else 1.0
        elif any(cells > 1 for cells, _ in rows):
            splitting.append(delimiter)
    if not shares and "," not in splitting:
        return ","  # a file with one column: each row is one cell (a list `a;b`)
    # In a file with one column, rows with commas are ragged and get findings.
    best = max(shares.values(), default=0.0)
    close = [delimiter for delimiter in sorted(shares, key=lambda delimiter: -shares[delimiter]) if best - shares[delimiter] < CLEAR_LEAD]
    first, *others = close or splitting
    if others:
        raise UsageError(
            f"{name} can be read with more than one delimiter: {' and '.join(CANDIDATES[delimiter] for delimiter in (first, *others))}",
            hint=f"say which one it is, for example --delimiter {CANDIDATES[first]}",
            code="ambiguous_delimiter",
        )
    return first


SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
}
TABLE_SUFFIXES = (".xlsx", ".xlsm", ".xls", ".parquet")
CHARACTER_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}
START_LENGTH = 4096
DEFAULT_OPTIONS = SourceOptions()
_JSON_ARRAY = re.compile(r"\s*\[\s*([\[{\]]|$)")
_JSON_OBJECT = re.compile(r"\s*\{\s*([\"}]|$)")


def open_source(path: Path, options: SourceOptions = DEFAULT_OPTIONS, *, name: str | None = None) -> Source:
    """Open a regular file for repeated reading.

    `name` is its name in messages, and determines its format. Raises UsageError (exit 2) if the file cannot be opened, decoded or read as a
    table, RejectedError (exit 9) for a malformed header.
    """
    shown = name if name is not None else str(path)
    compressed = read_start(path, shown, 2, compressed=False) == GZIP_MAGIC
    start = read_start(path, shown, START_LENGTH, compressed=compressed)
    table = _table_format(start, path)
    if table is not None:
        _refuse_dialect_options(options, table)
        if options.format not in (None, str(table)):
            raise UsageError(f"the file is {table}, not {options.format}", hint=f"--format {table}, or none", code="unknown_format")
        from crmctl.files.sheets import open_table

        return open_table(path, shown, table, options.sheet)
    refuse_foreign(start, shown)
    encoding = find_encoding(start, options.encoding)
    lines = partial(_lines, path, shown, encoding, compressed)
    with open_text(path, shown, encoding, compressed=compressed) as text:
        beginning = text.read(START_LENGTH)
        kind = _format(options, shown, beginning.lstrip())
        beginning += text.read(SAMPLE)
        doubt = describe_words(text, beginning, encoding.name)
    notes = ["it is text, though its name says otherwise"] if PurePath(shown).suffix.lower() in TABLE_SUFFIXES else []
    notes += [doubt] if doubt else []
    _refuse_dialect_options(options, kind)
    if not kind.is_delimited:
        dialect = Dialect(kind, compressed, encoding.name, encoding.bom, notes=notes)
        from crmctl.files.json_files import JsonSource

        return JsonSource(path, shown, dialect)
    if options.delimiter is not None:
        delimiter = _delimiter(options.delimiter)
    elif kind is Format.TSV:
        delimiter = "\t"
    elif named := separator_of(next(lines(), "")):
        delimiter = named
        notes.append(f"the first line names the delimiter: sep={named}")
    else:
        delimiter = detect_delimiter(lines, shown)
    if not compressed:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4))
            end = file.read().rstrip(b"\0")
        if end and not end.endswith((b"\n", b"\r")):
            notes.append("the last line has no line end: was the file cut off?")
    dialect = Dialect(kind, compressed, encoding.name, encoding.bom, delimiter, notes=notes)
    return DelimitedSource(path, shown, dialect, options)


def _table_format(start: bytes, path: Path) -> Format | None:
    """Return the format of a file with typed cells by its content, or else None."""
    if start.startswith(b"PAR1"):
        return Format.PARQUET
    if not start.startswith(b"PK\x03\x04"):
        return None
    import zipfile

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return Format.XLSX if "xl/workbook.xml" in archive.namelist() else None
    return None


def _lines(path: Path, name: str, encoding: Encoding, compressed: bool) -> Iterator[str]:
    with open_text(path, name, encoding, compressed=compressed) as text:
        yield from Lines(text, name)


def _format(options: SourceOptions, name: str, start: str) -> Format:
    """Return the declared format, or else the one suggested by name and content.

    Content alone distinguishes JSON arrays from JSON lines.
    """
    if options.format is not None:
        kinds = {str(kind): kind for kind in Format if kind.is_text}
        if options.format.lower() not in kinds:
            hint = suggestion(options.format, kinds, f"one of: {', '.join(kinds)}")
            raise UsageError(f"unknown format {options.format}", hint=hint, code="unknown_format")
        return kinds[options.format.lower()]
    plain = PurePath(name[:-3] if name.lower().endswith(".gz") else name)
    named = SUFFIXES.get(plain.suffix.lower())
    if named is not None and named.is_delimited:
        return named
    if _JSON_ARRAY.match(start):
        return Format.JSON
    if _JSON_OBJECT.match(start):
        return Format.JSONL
    if named is not None:
        return named
    if not start:
        return Format.JSONL  # in JSON lines an empty file is valid and has no rows
    first_line = start.splitlines()[0]
    if options.delimiter is None and "\t" in first_line and not any(mark in first_line for mark in ",;|"):
        return Format.TSV
    return Format.CSV


def _delimiter(text: str) -> str:
    character = CHARACTER_NAMES.get(text.lower(), text)
    if len(character) != 1 or character in f"\r\n\0{QUOTE}":
        names = ", ".join(name for name in CHARACTER_NAMES if name.isalpha())
        raise UsageError(f"--delimiter takes one character other than a quote, or one of {names}", code="usage")
    return character


def _refuse_dialect_options(options: SourceOptions, format: Format) -> None:
    if options.delimiter is not None and not (format.is_delimited and format.is_text):
        raise UsageError(f"--delimiter has no meaning for {format}", hint="give --format csv if the file is CSV")
    if options.sheet is not None and format is not Format.XLSX:
        raise UsageError(f"--sheet has no meaning for {format}")


STDIN = "-"
STDIN_NAMES = frozenset({STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
DESCRIPTOR = re.compile(r"/dev/fd/\d+|/proc/(self|\d+)/fd/\d+|/dev/tty")
COPY_NAME = "input"


@frozen
class GivenInput:
    """An input with the user's name for it and the path of its bytes. `is_copy`: the path is a movable copy of a stream."""

    name: str
    path: Path
    is_copy: bool = False

    @classmethod
    def at(cls, path: Path) -> GivenInput:
        return cls(str(path), path)


def is_stream(file: str) -> bool:
    """Whether an input can be read only once: stdin, a pipe, or the shell's `<(command)`.

    Raises UsageError for a missing file, a directory, a socket or a device.
    """
    if file in STDIN_NAMES:
        return True
    try:
        mode = Path(file).stat().st_mode
    except OSError as error:
        raise UsageError(f"cannot read {file}: {reason(error)}", code="unreadable_file") from error
    if stat.S_ISFIFO(mode) or DESCRIPTOR.fullmatch(file) or os.path.realpath(file) == os.devnull:
        return True
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UsageError(f"cannot read {file}: it is {kind}", hint="give a file, or - for stdin", code="unreadable_file")
    return False


def copy_stream(file: str, stdin: BinaryIO, path: Path) -> None:
    """Copy a stream into a private file. Raises UsageError for a read error, StorageError on a full disk."""
    path.touch(mode=0o600)
    try:
        with path.open("wb") as copy:
            if file in STDIN_NAMES:
                shutil.copyfileobj(stdin, copy)
            else:
                with Path(file).open("rb") as stream:
                    shutil.copyfileobj(stream, copy)
    except OSError as error:
        failure = storage_error(error, path, UsageError(f"cannot read {file}: {reason(error)}", code="unreadable_file"))
        raise failure from error
