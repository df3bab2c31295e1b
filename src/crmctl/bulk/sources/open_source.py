"""open_source: the door to every file a customer sends. Finds format, compression, encoding and dialect; what the user declares wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath

from crmctl.bulk.sources.bytestream import is_gzip, read_start, refuse_foreign
from crmctl.bulk.sources.delimited_source import DelimitedSource, separator_of
from crmctl.bulk.sources.detection import detect_delimiter
from crmctl.bulk.sources.rows import Dialect, Format, Source, SourceOptions
from crmctl.bulk.sources.text_encodings import SAMPLE, Encoding, find_encoding, mistaken_encoding, open_text, read_lines, samples_of
from crmctl.errors import UsageError
from crmctl.models.nearest import suggestion

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
    """Open a regular file for reading any number of times. `name` is what messages call it, and what its format is read from.

    Raises UsageError (exit 2) for what cannot be opened, decoded or understood as a table, RejectedError (exit 9) for a malformed header.
    """
    shown = name if name is not None else str(path)
    compressed = is_gzip(path, shown)
    start = read_start(path, shown, START_LENGTH, compressed=compressed)
    table = _table_format(start, path)
    if table is not None:
        _refuse_other_options(options, table)
        from crmctl.bulk.sources.tables import open_table

        return open_table(path, shown, table, options.sheet)
    refuse_foreign(start, shown)
    encoding = find_encoding(start, options.encoding)
    lines = partial(_lines, path, shown, encoding, compressed)
    with open_text(path, shown, encoding, compressed=compressed) as text:
        beginning = text.read(START_LENGTH)
        kind = _format(options, shown, beginning.lstrip())
        beginning += text.read(SAMPLE)
        doubt = mistaken_encoding(beginning, encoding.name) or samples_of(text, beginning, encoding.name)
    notes = ["it is text, though its name says otherwise"] if PurePath(shown).suffix.lower() in TABLE_SUFFIXES else []
    notes += [doubt] if doubt else []
    if not kind.is_delimited:
        _refuse_dialect_options(options, kind)
        dialect = Dialect(kind, compressed, encoding.name, encoding.bom, notes=notes)
        return _json_source(kind)(path, shown, dialect)
    quote = '"' if options.quote is None else _quote(options.quote)
    if options.delimiter is not None:
        delimiter = _character(options.delimiter, "--delimiter")
    elif kind is Format.TSV:
        delimiter = "\t"
    elif named := separator_of(next(lines(), "")):
        delimiter = named
        notes.append(f"the first line names the delimiter: sep={named}")
    else:
        delimiter = detect_delimiter(lines, quote, shown)
    if delimiter == quote:
        raise UsageError("the delimiter and the quote are the same character", hint="give --delimiter and --quote")
    if not compressed and not _ends_a_line(path):
        notes.append("the last line has no line end: was the file cut off?")
    dialect = Dialect(kind, compressed, encoding.name, encoding.bom, delimiter, quote, notes=notes)
    return DelimitedSource(path, shown, dialect, options)


def _json_source(kind: Format) -> Callable[[Path, str, Dialect], Source]:
    if kind is Format.JSONL:
        from crmctl.bulk.sources.jsonlines import JsonLinesSource

        return JsonLinesSource
    from crmctl.bulk.sources.jsonarray import JsonArraySource

    return JsonArraySource


def _table_format(start: bytes, path: Path) -> Format | None:
    """The format that a file's content says, when it is one of typed cells."""
    if start.startswith(b"PAR1"):
        return Format.PARQUET
    if not start.startswith(b"PK\x03\x04"):
        return None
    import zipfile

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return Format.XLSX if "xl/workbook.xml" in archive.namelist() else None
    return None


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        end = file.read().rstrip(b"\0")
        return not end or end.endswith((b"\n", b"\r"))


def _lines(path: Path, name: str, encoding: Encoding, compressed: bool) -> Iterator[str]:
    with open_text(path, name, encoding, compressed=compressed) as text:
        yield from read_lines(text, name)


def _format(options: SourceOptions, name: str, start: str) -> Format:
    """As declared; else by name, where a JSON name leaves it to the content whether it is an array or lines; else by content."""
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
        return Format.JSONL  # the one format in which no text is no rows
    first_line = start.splitlines()[0]
    if options.delimiter is None and "\t" in first_line and not any(mark in first_line for mark in ",;|"):
        return Format.TSV
    return Format.CSV


def _character(text: str, option: str) -> str:
    character = CHARACTER_NAMES.get(text.lower(), text)
    if len(character) != 1 or character in "\r\n\0":
        raise UsageError(f"{option} takes one character, or one of {', '.join(n for n in CHARACTER_NAMES if n.isalpha())}", code="usage")
    return character


def _quote(text: str) -> str | None:
    return None if text.lower() in ("none", "") else _character(text, "--quote")


def _refuse_other_options(options: SourceOptions, format: Format) -> None:
    """A file of typed cells has nothing to declare, but for the sheet of a workbook."""
    _refuse_dialect_options(options, format)
    if options.format not in (None, str(format)):
        raise UsageError(f"the file is {format}, not {options.format}", hint=f"--format {format}, or none", code="unknown_format")
    if options.sheet is not None and format is not Format.XLSX:
        raise UsageError(f"--sheet has no meaning for {format}")


def _refuse_dialect_options(options: SourceOptions, format: Format) -> None:
    for option, value in (("--delimiter", options.delimiter), ("--quote", options.quote), ("--pad-short", options.pad_short or None)):
        if value is not None:
            raise UsageError(f"{option} has no meaning for {format}", hint="give --format csv if the file is CSV")
