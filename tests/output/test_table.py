"""Tables and blocks: no id is cut, and no value from the service controls the terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from crmctl.cli.verbs import NOUNS
from crmctl.models.resources import Attribute
from crmctl.output.streams import clean
from crmctl.output.table import Cells, aligned, fit
from crmctl.output.value_text import local
from crmctl.output.views import record_view
from tests.output.samples import NIL, TYPES, Run, record, view
from tests.support.zones import in_zone

LONG = "a sentence that goes on for much longer than any terminal is wide, and then some more"
ID = f"{NIL}000000000001"


def rows(run: Run) -> list[str]:
    return run.out.splitlines()


def test_values_read_like_a_person_would_write_them() -> None:
    run = Run("table")
    run.emitter.emit_items([record(1), record(22, currency={"amount": "7", "currency": "JPY"}, checkbox=False, number=12345.5)], view())
    header, first, second = rows(run)
    assert header.split() == ["id", *TYPES, "updatedAt"]
    for text in (
        "[on hold] Zoë",
        "ada@acme.test",
        "  -5",
        "yes",
        "Ada Lovelace",
        "1 Rue X, Paris, FR",
        "1,234.50 EUR",
        "2026-01-02",
        "a, b",
    ):
        assert text in first
    assert " no " in second
    assert "  7 JPY" in second
    assert first.index("-5") + 2 == second.index("12345.5") + 7, "numbers line up at their right end"


@pytest.mark.parametrize(
    ("slug", "value", "shown"),
    [
        ("name", "Ada L", "Ada L"),
        ("name", {"firstName": "Ada", "lastName": "Lovelace", "middle": None}, "Ada Lovelace"),
        ("name", {"fullName": "Ada King", "first": "Ada"}, "Ada King"),
        ("name", {"x": "Q", "y": 7}, "Q 7"),
        ("address", "1 Rue X\nParis", "1 Rue X, Paris"),
        ("address", {"country": "FR", "zip": "75001", "street": "1 Rue X", "city": "Paris"}, "1 Rue X, Paris, 75001, FR"),
        ("currency", 1234567, "1,234,567.00"),
        ("currency", "12.3456", "12.3456"),
        ("currency", {"value": -1000, "currencyCode": "USD"}, "-1,000.00 USD"),
        ("currency", "about ten", "about ten"),
        ("checkbox", "maybe", "maybe"),
        ("reference", {"id": ID, "name": "Acme"}, ID),
        ("reference", [ID, {"recordId": ID}], f"{ID}, {ID}"),
        ("list", [{"name": "VIP"}, 3, None, True], "VIP, 3, , yes"),
        ("text", {"unknown": [1]}, '{"unknown":[1]}'),
        ("text", {}, ""),
        ("text", {"amount": 3600, "currency": "EUR"}, "3,600.00 EUR"),
        ("text", [{"amount": 5, "currency": "JPY"}, {"amount": 1.5, "currency": "USD"}], "5 JPY, 1.50 USD"),
        ("text", {"firstName": "Ada", "lastName": "King"}, "Ada King"),
        ("text", {"countryCode": "IT", "city": "Rome", "street": "Via X"}, "Via X, Rome, IT"),
        ("text", {"city": "Rome", "size": 3}, '{"city":"Rome","size":3}'),
        ("text", {"country": "IT", "city": "Rome"}, "Rome, IT"),
        ("currency", {"size": 3}, '{"size":3}'),
        ("number", 12345678901234567890, "12345678901234567890"),
        ("text", None, ""),
    ],
)
def test_any_shape_of_a_value_is_shown_sensibly(slug: str, value: object, shown: str) -> None:
    run = Run("table", fields=["id", slug])
    run.emitter.emit_items([record(1, **{slug: value})], view())
    assert rows(run)[1].split("  ", 1)[0] == ID
    assert rows(run)[1][38:].strip() == shown


@pytest.mark.parametrize("width", [20, 50, 80, 120, 200])
def test_lines_fit_and_ids_stay_whole(width: int) -> None:
    run = Run("table", {"COLUMNS": str(width)})
    run.emitter.emit_items([record(number, text=LONG, name="漢字" * 20) for number in (1, 2)], view())
    lines = rows(run)
    assert all(cell_len(line) <= max(width, 36) for line in lines)
    assert [line[:36] for line in lines[1:]] == [f"{NIL}00000000000{number}" for number in (1, 2)]
    hidden = [slug for slug in view().fields if slug not in ("objectId", "data", "createdAt") and slug not in lines[0].split()]
    assert ("not shown" in run.err) == bool(hidden)
    assert all(slug in run.err for slug in hidden)


def test_free_text_gives_way_first_and_says_so_with_an_ellipsis() -> None:
    run = Run("table", {"COLUMNS": "70"}, fields=["id", "text", "number"])
    run.emitter.emit_items([record(1, text=LONG), record(2, text="short", number=1234567)], view())
    first, second = rows(run)[1:]
    assert len(first) == len(second) == 70
    assert first.endswith("…       -5")
    assert second.endswith("  1234567")
    assert "  short  " in second
    assert run.err == ""


def test_chosen_columns_that_do_not_fit_are_a_block_for_each_record() -> None:
    run = Run("table", {"COLUMNS": "40"}, fields=["id", "reference", "email"])
    run.emitter.emit_items([record(1), record(2)], view())
    assert rows(run)[:4] == [f"id         {ID}", f"reference  {NIL}000000000099", "email      ada@acme.test", ""]
    assert len(rows(run)) == 7
    assert run.err == ""


def test_in_a_pipe_nothing_is_cut_coloured_or_relative() -> None:
    run = Run("table")
    run.emitter.emit_items([record(1, text=LONG * 5)], view())
    assert LONG * 5 in run.out
    assert "2026-01-02T00:00:00Z" in run.out
    assert "\x1b" not in run.out


@pytest.mark.parametrize("slug", ["text", "email", "name", "list", "reference"])
def test_wide_and_combining_characters_keep_the_columns_straight(slug: str) -> None:
    run = Run("table", fields=[slug, "number"])
    values = ["漢字テスト", "cafe\u0301", "🙂🙂", "plain", "👩\u200d👩\u200d👧"]
    run.emitter.emit_items([record(1, **{slug: [value] if slug == "list" else value}) for value in values], view())
    assert len({cell_len(line) for line in rows(run)}) == 1


HOSTILE = "\x1b[31mred\x1b[0m\x1b]0;title\x07 a\x07b\u202edc\u2066x\u200b\u009b2Jy\nz\tq\x00\ud800"


def test_control_and_direction_characters_never_reach_the_terminal() -> None:
    assert clean(HOSTILE) == "red abdcxy z q�"
    table, block = Run("table"), Run("table")
    table.emitter.emit_items([record(1, text=HOSTILE)], view())
    block.emitter.emit_item(record(1, text=HOSTILE, **{HOSTILE: "as a slug"}), view())
    table.emitter.emit_items([{HOSTILE: 1}])
    for out in (table.out, block.out):
        assert not set(out) & set("\x1b\x07\x00\u202e\u2066\u200b\u009b\t\ud800")
    assert len(rows(table)) == 4


def test_markup_is_data() -> None:
    for text in ("[on hold]", "[/x]", "[bold]x[/bold]", ":smile:", "{x}", "%s"):
        run = Run("table", fields=["text"])
        run.emitter.emit_items([record(1, text=text)], view())
        assert rows(run) == ["text", text]


def test_a_record_is_a_block_with_lines_kept_and_times_in_full() -> None:
    run = Run("table")
    run.emitter.emit_item({**record(1, text="one\ntwo", unknown="kept"), "added": {"by": "the service"}}, view())
    lines = rows(run)
    assert lines[0] == f"id            {ID}"
    assert lines[1:3] == ["text          one", "              two"]
    assert "name          Ada Lovelace" in lines
    assert "createdAt     2026-01-01T00:00:00Z" in lines
    assert "unknown       kept" in lines
    assert 'added         {"by":"the service"}' in lines
    assert not any(line.startswith("data ") for line in lines)


def test_an_object_shows_its_attributes_below() -> None:
    run = Run("table")
    attributes = [{"id": "a1", "slug": "email", "type": "email", "isRequired": True}]
    run.emitter.emit_item({"id": "o1", "slug": "people", "isActive": True, "attributes": attributes}, NOUNS["objects"].view)
    assert "isActive  yes" in run.out
    assert "\n\nattributes\nslug   name  type   isRequired" in run.out
    assert "\nemail        email  yes" in run.out


def test_a_slug_named_like_a_field_of_the_record_does_not_hide_it() -> None:
    odd = record_view([Attribute.parse({"id": "1", "slug": slug, "type": "text"}) for slug in ("id", "createdAt", "data", "a.b")])
    run = Run("csv")
    values = {"id": "inner", "createdAt": "c", "data": "d", "a.b": "dotted"}
    run.emitter.emit_items([{"id": "real", "data": values, "createdAt": "t"}], odd)
    assert run.out == "id,data.id,data.createdAt,data.data,a.b,createdAt,updatedAt\nreal,inner,c,d,dotted,t,\n"
    chosen = Run("jsonl", fields=["a.b", "data.id"])
    chosen.emitter.emit_items([{"id": "real", "data": {"id": "inner", "a.b": "dotted"}}], odd)
    assert chosen.out == '{"data":{"a.b":"dotted","id":"inner"}}\n'


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        ("2026-01-02T00:00:59Z", ("2026-01-02 01:00", "CET")),
        ("2026-07-01T23:59:00.123456Z", ("2026-07-02 01:59", "CEST")),
        ("2026-01-01T22:00:00-05:00", ("2026-01-02 04:00", "CET")),
        ("2026-01-01T22:00:00", ("2026-01-01 23:00", "CET")),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_local_to_the_minute(timestamp: str, shown: tuple[str, str] | None) -> None:
    with in_zone("Europe/Berlin"):
        assert local(timestamp) == shown


def test_lines_below_each_other_count_cells_and_not_characters() -> None:
    assert aligned([("LINE", "FILE", "RECORD"), ("2", "東京", "京都"), ("13", "Ada 👩‍💻", "x")]) == [
        "LINE  FILE    RECORD",
        "2     東京    京都",
        "13    Ada 👩‍💻  x",
    ]


def test_columns_of_few_values_go_before_full_ones() -> None:
    def column(header: str, filled: int) -> Cells:
        return Cells(header, ["x" * 9] * filled + [""] * (10 - filled), is_value=True)

    columns = [column("id", 10), column("name", 3), column("email", 10), column("fax", 2), column("score", 9), column("phone", 4)]
    assert [cells.header for cells in fit(columns, 200, may_drop=True)[0]] == ["id", "name", "email", "fax", "score", "phone"]
    assert [cells.header for cells in fit(columns, 53, may_drop=True)[0]] == ["id", "name", "email", "fax", "score"]
    assert [cells.header for cells in fit(columns, 42, may_drop=True)[0]] == ["id", "name", "email", "score"]
    assert [cells.header for cells in fit(columns, 31, may_drop=True)[0]] == ["id", "name", "email"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"amount": "12.50", "value": 1250, "currency": "EUR"}, "12.50 EUR"),
        ({"number": "+4915112345678", "code": "DE"}, '{"number":"+4915112345678","code":"DE"}'),
        ({"value": 12, "unit": "kg"}, '{"value":12,"unit":"kg"}'),
    ],
)
def test_only_an_object_that_names_its_currency_is_shown_as_money(value: dict[str, object], text: str) -> None:
    run = Run("table", {"COLUMNS": "80"})
    run.emitter.emit_items([{"cell": value}])
    assert rows(run) == ["cell", text]
