"""Exports as Parquet and Excel: types if every value fits exactly, text otherwise, never a formula."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from typing import Any

import openpyxl
import pyarrow.parquet as pq
import pytest

from crmctl.errors import RejectedError
from crmctl.files.export_formats import CELL_LENGTH, Layout, write_parquet, write_xlsx
from crmctl.files.sheets import _value as unescape
from crmctl.models.jsontext import dumps, loads
from crmctl.models.resources import Attribute

MOMENT = "2026-01-02T03:04:05.000006Z"
KINDS = {"note": "text", "score": "number", "member": "checkbox", "born": "date", "name": "name", "tags": "list"}
ATTRIBUTES = [Attribute.parse({"id": slug, "slug": slug, "type": kind}) for slug, kind in KINDS.items()]


def wires(*data: dict[str, Any]) -> list[str]:
    return [dumps({"id": f"id-{n}", "data": one, "createdAt": MOMENT, "updatedAt": MOMENT}) for n, one in enumerate(data)]


def parquet(*data: dict[str, Any]) -> Any:
    raw = io.BytesIO()
    write_parquet(raw, Layout("parquet", ATTRIBUTES), lambda: wires(*data))
    return pq.read_table(io.BytesIO(raw.getvalue()))


def xlsx(*data: dict[str, Any]) -> list[tuple[Any, ...]]:
    raw = io.BytesIO()
    write_xlsx(raw, Layout("xlsx", ATTRIBUTES), lambda: wires(*data))
    return list(openpyxl.load_workbook(io.BytesIO(raw.getvalue())).active.iter_rows())


WHOLE = {"note": "=1+1", "score": 1.5, "member": True, "born": "2026-01-02", "name": {"first": "Zoë"}, "tags": ["a"]}


def test_parquet_columns_have_the_types_of_their_attributes() -> None:
    table = parquet(WHOLE, {})
    assert [str(field.type) for field in table.schema] == [
        "string", "string", "double", "bool", "date32[day]", "string", "string", "timestamp[us, tz=UTC]", "timestamp[us, tz=UTC]",
    ]  # fmt: skip
    first, second = table.to_pylist()
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert first == {
        "id": "id-0", "note": "=1+1", "score": 1.5, "member": True, "born": date(2026, 1, 2), "name": '{"first":"Zoë"}', "tags": '["a"]',
        "createdAt": moment, "updatedAt": moment,
    }  # fmt: skip
    assert {second[slug] for slug in KINDS} == {None}


@pytest.mark.parametrize(
    ("slug", "value"),
    [("score", 2**53 + 1), ("score", loads("0.12345678901234567890")), ("member", "yes"), ("born", "2026-02-30"), ("born", "1/2/2026")],
)
def test_a_value_that_its_type_would_change_makes_the_column_text(slug: str, value: Any) -> None:
    table = parquet(WHOLE, {slug: value})
    assert str(table.schema.field(slug).type) == "string"
    assert table.to_pylist()[1][slug] == (value if isinstance(value, str) else dumps(value))
    assert table.to_pylist()[0][slug] == (WHOLE[slug] if isinstance(WHOLE[slug], str) else dumps(WHOLE[slug]))


def test_an_export_without_records_has_its_columns() -> None:
    assert parquet().num_rows == 0
    assert [cell.value for cell in xlsx()[0]] == ["id", *KINDS, "createdAt", "updatedAt"]


def test_a_sheet_has_numbers_dates_and_text_that_is_never_a_formula() -> None:
    row = xlsx(WHOLE)[1]
    assert [(cell.data_type, cell.value) for cell in row] == [
        ("s", "id-0"), ("s", "=1+1"), ("n", 1.5), ("b", True), ("d", datetime(2026, 1, 2)), ("s", '{"first":"Zoë"}'), ("s", '["a"]'),
        ("d", datetime(2026, 1, 2, 3, 4, 5)), ("d", datetime(2026, 1, 2, 3, 4, 5)),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [1234567890123456, loads("0.12345678901234567890"), -9007199254740993])
def test_numbers_that_a_sheet_would_cut_are_text(value: Any) -> None:
    assert xlsx({"score": value})[1][2].value == dumps(value)


@pytest.mark.parametrize("text", ["bell \x07", "_x0041_", "a\nb\tc", "a\r\nb\rc", "\ufffe\uffff", " blank ", "#N/A", "0012"])
def test_every_text_comes_back_from_a_sheet(text: str) -> None:
    cell = xlsx({"note": text})[1][1]
    assert (cell.data_type, unescape(cell.value)) == ("s", text)


def test_a_text_that_is_too_long_for_a_cell_is_an_error_that_names_the_record() -> None:
    with pytest.raises(RejectedError, match="record id-1") as caught:
        xlsx({"note": "x" * CELL_LENGTH}, {"note": "x" * (CELL_LENGTH + 1)})
    assert caught.value.code == "cell_too_long"


def test_json_numbers_keep_every_digit_in_text_formats() -> None:
    wire = '{"id":"1","data":{"score":0.12345678901234567890},"createdAt":null,"updatedAt":null}'
    cells = Layout("csv", [ATTRIBUTES[1]]).cells(wire)
    assert dumps(cells[1]) == "0.12345678901234567890"
