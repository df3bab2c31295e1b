"""What the user says about columns: `--map 'Work Email=email'` and the files of `--map-file` (JSON, YAML or CSV).

Text to pairs, nothing more.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crmctl.errors import UsageError, reason
from crmctl.models import jsontext, yamltext
from crmctl.models.composites import fold

HEADER_WORDS = frozenset({"column", "columns", "header", "from", "source", "slug", "target", "to", "attribute"})


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Column to target of `COLUMN=SLUG` texts; an empty target leaves the column out. The column may hold `=`, a slug cannot."""
    mapped: dict[str, str] = {}
    for pair in pairs:
        column, equals, target = pair.rpartition("=")
        if not equals or not column:
            raise UsageError(f"--map takes COLUMN=SLUG, not {pair!r}", hint="for example --map 'Work Email=email'")
        if mapped.get(column, target) != target:
            raise UsageError(f"--map gives two targets for the column {column!r}: {mapped[column]!r} and {target!r}")
        mapped[column] = target.strip()
    return mapped


def read_map_file(path: Path) -> dict[str, str]:
    """Column to target from a file: a JSON or YAML object, or CSV with two columns. Raises UsageError for anything else."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
    except UnicodeError as error:
        raise UsageError(f"{path} is not UTF-8", code="undecodable") from error
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _pairs(path, _csv_pairs(path, text, "\t" if suffix == ".tsv" else ","))
    document = _document(path, text, is_json=suffix == ".json" or text.lstrip().startswith("{"))
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold an object of column names and slugs", hint='for example {"Work Email": "email", "Notes": ""}')
    return _pairs(path, list(document.items()))


def _document(path: Path, text: str, *, is_json: bool) -> Any:
    if is_json:
        try:
            return jsontext.loads(text, unique_keys=True)
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {reason(error)}") from error
    try:
        return yamltext.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not YAML: {reason(error)}") from error


def _csv_pairs(path: Path, text: str, delimiter: str) -> list[tuple[Any, Any]]:
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {reason(error)}") from error
    for row in rows:
        if len(row) != 2:
            raise UsageError(
                f"{path} must have two columns, the column name and the slug", hint=f"this row has {len(row)}: {', '.join(row)}"
            )
    if rows and all(fold(cell) in HEADER_WORDS for cell in rows[0]):
        rows = rows[1:]
    return [(column, target) for column, target in rows]


def _pairs(path: Path, items: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for column, target in items:
        if not isinstance(column, str) or not (target is None or isinstance(target, str)):
            raise UsageError(
                f"{path}: {column!r}: {target!r} is not a column name and a slug", hint="both are text; an empty slug leaves the column out"
            )
        if column in mapped:
            raise UsageError(f"{path} names the column {column!r} twice")
        mapped[column] = (target or "").strip()
    return mapped
