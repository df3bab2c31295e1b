"""The table of output formats: one row says everything about a format."""

from __future__ import annotations

from typing import NamedTuple


class OutputFormat(NamedTuple):
    """`help` is its text in `crmctl help output`. `writer` is a class in `output/formats.py`.

    `keeps_shape`: --fields leaves items as they are, only smaller. `has_columns`: --fields are columns.
    `is_document`: the output is one document, which crmctl writes whole or not at all.
    """

    help: str
    writer: str
    keeps_shape: bool = False
    has_columns: bool = False
    is_document: bool = False
    delimiter: str = ""


_DELIMITED = "id, one column per attribute, createdAt, updatedAt; money and parts in columns of their own"
OUTPUT_FORMATS = {
    "table": OutputFormat("for people", "Table", has_columns=True),
    "json": OutputFormat(
        "one document: an array for a list, an object for one resource",
        "JsonDocument",
        keeps_shape=True,
        is_document=True,
    ),
    "jsonl": OutputFormat("one resource a line, as pages arrive", "JsonLines", keeps_shape=True),
    "csv": OutputFormat(_DELIMITED, "Delimited", has_columns=True, delimiter=","),
    "tsv": OutputFormat(_DELIMITED, "Delimited", has_columns=True, delimiter="\t"),
    "yaml": OutputFormat("one document", "YamlDocument", keeps_shape=True, is_document=True),
    "ids": OutputFormat("one id a line, for xargs and bulk delete --ids -", "Ids"),
}
