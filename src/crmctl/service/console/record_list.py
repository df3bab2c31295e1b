"""Pages of an object's records: the list with its filters, columns and pages, as CSV, and what a reference may be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.models.jsontext import Json
from crmctl.service.conditions import read_condition
from crmctl.service.console.cells import cells_of
from crmctl.service.console.conditions_form import (
    PHRASES,
    Rows,
    blamed,
    needs_no_value,
    operators_for,
    refuse_unfinished,
    rows_of,
    stored_spelling,
)
from crmctl.service.console.pages import Pages
from crmctl.service.console.visits import ConsolePage, Download, Redirect, Visit
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import attributes, objects, records
from crmctl.service.store.records import Paging, PartOfList
from crmctl.service.store.tx import Tx
from crmctl.values.filters import Condition

PER_PAGE = 25
MOST_IN_CSV = 10_000
FIRST_COLUMNS = 6

SORTS = {
    "newest": ("Newest first", "newest", Paging("created_at", "desc")),
    "oldest": ("Oldest first", "oldest", Paging("created_at", "asc")),
    "changed": ("Changed last", "last changed", Paging("updated_at", "desc")),
    "unchanged": ("Unchanged longest", "longest unchanged", Paging("updated_at", "asc")),
}
"""Sort orders: label, adjective for the records that come first, and paging."""

TIMES = {"created_at": "Created", "updated_at": "Changed"}


@dataclass(frozen=True)
class ListQuestion:
    """The question in the address of a list: conditions as typed, columns by slug, sort order; `is_complete` searches every record."""

    conditions: Rows
    columns: tuple[str, ...]
    sort: str
    is_complete: bool = False

    def query(self, **more: Any) -> str:
        """Return the query string of the address with more parameters, each ending in `&`."""
        more = more | ({"all": 1} if self.is_complete else {})
        pairs = [pair for slug, name, value in self.conditions for pair in (("where", slug), ("op", name), ("value", value))]
        pairs += [("column", slug) for slug in self.columns]
        pairs += [("sort", self.sort)] if self.sort != "newest" else []
        pairs += [(name, str(value)) for name, value in more.items()]
        return "".join(f"{pair}&" for pair in urlencode(pairs).split("&") if pair)


def add_pages(pages: Pages) -> None:
    """The list, its CSV, and the search for references."""

    @pages.get("/records")
    def first_object(_tx: Tx, visit: Visit) -> Redirect:
        return Redirect(f"/records/{visit.objects[0]['slug']}" if visit.objects else "/objects")

    @pages.get("/records/{slug}", is_slow=True)
    def list_records(tx: Tx, visit: Visit) -> ConsolePage:
        return _list(tx, visit)

    @pages.get("/records/{slug}/csv", is_slow=True)
    def download(tx: Tx, visit: Visit) -> Download:
        known = object_of(tx, visit)
        found = attributes.list_attributes(tx, known["id"])
        question = _question(visit, found)
        paging = SORTS[question.sort][-1]
        page = Paging(paging.sort, paging.order, MOST_IN_CSV)
        rows, _ = records.list_records(tx, known["id"], _conditions(question, found), page)
        return Download(_csv(question.columns, rows), "text/csv; charset=utf-8", f"{known['slug']}.csv")

    @pages.get("/records/{slug}/lookup", is_slow=True)
    def look_up(tx: Tx, visit: Visit) -> Download:
        """For the script of a reference's field: `[{id, label, about}]`."""
        found = records.find_by_label(tx, object_of(tx, visit)["id"], visit.query.get("q", "")[:200])
        return Download(jsontext.dumps(found).encode(), "application/json")


def object_of(tx: Tx, visit: Visit) -> Json:
    """The object of the path's slug. Raises NotFound."""
    known = objects.find_object_by_slug(tx, str(visit.path["slug"]))
    if known is None:
        raise NotFound(f"there is no object {visit.path['slug']!r}")
    return known


def _list(tx: Tx, visit: Visit) -> ConsolePage:
    known = object_of(tx, visit)
    found = attributes.list_attributes(tx, known["id"])
    question, page, error = _question(visit, found), visit.number("page", 1), None
    _, first_ones, paging = SORTS[question.sort]
    part = PartOfList([], 0, 0, 0)
    try:
        here = Paging(paging.sort, paging.order, PER_PAGE, (page - 1) * PER_PAGE)
        part = _part(tx, known["id"], question, found, here)
    except BadRequest as problem:
        error = blamed(problem.message, question.conditions, {each["slug"]: each["name"] for each in found})
    by_slug = {attribute["slug"]: attribute for attribute in found}
    shown = [by_slug[slug] for slug in question.columns if slug in by_slug]
    values = {
        "section": f"records-{known['slug']}",
        "object": known,
        "attributes": found,
        "shown": shown,
        "times": [(slug, name) for slug, name in TIMES.items() if slug in question.columns],
        "all_times": TIMES,
        "rows": list(zip(part.records, cells_of(tx, shown, part.records, visit), strict=True)),
        "part": part,
        "first_ones": first_ones,
        "first": (page - 1) * PER_PAGE + 1,
        "page": page,
        "question": question,
        "chips": _chips(question, by_slug),
        "operators": operators_for,
        "sorts": SORTS,
        "error": error,
        "most_in_csv": MOST_IN_CSV,
    }
    return ConsolePage("records.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)


def _chips(question: ListQuestion, by_slug: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Each condition in words, with the query of the list without it."""
    names = TIMES | {slug: attribute["name"] for slug, attribute in by_slug.items()}
    chips = []
    for place, (slug, name, value) in enumerate(question.conditions):
        others = question.conditions[:place] + question.conditions[place + 1 :]
        words = PHRASES.get(name, name)
        text = f"{names.get(slug, slug)} {words} {'' if needs_no_value(name) else value}"
        chips.append((text, replace(question, conditions=others).query()))
    return chips


def _part(tx: Tx, object_id: str, question: ListQuestion, found: Sequence[Mapping[str, Any]], page: Paging) -> PartOfList:
    """Raises BadRequest."""
    if not question.is_complete:
        return records.list_part(tx, object_id, _conditions(question, found), page)
    everything = records.count_records(tx, object_id)
    return PartOfList(*records.list_records(tx, object_id, _conditions(question, found), page), everything, everything)


def _question(visit: Visit, found: Sequence[Mapping[str, Any]]) -> ListQuestion:
    """Return the question of the address. Unknown columns are dropped; an unknown attribute in a condition becomes an error later."""
    conditions = rows_of(visit.queries)
    known = [attribute["slug"] for attribute in found] + list(TIMES)
    asked = [slug for slug in dict.fromkeys(visit.queries.get("column", ())) if slug in known]
    columns = tuple(asked or [*known[: min(FIRST_COLUMNS, len(found))], "created_at"])
    sort = visit.query.get("sort", "newest")
    return ListQuestion(conditions, columns, sort if sort in SORTS else "newest", visit.query.get("all") == "1")


def _conditions(question: ListQuestion, found: Sequence[Mapping[str, Any]]) -> list[Condition]:
    """Raises BadRequest."""
    refuse_unfinished(question.conditions)
    by_slug = {attribute["slug"]: attribute for attribute in found}
    return [
        read_condition(slug, name, "true" if needs_no_value(name) else stored_spelling(by_slug.get(slug), value))
        for slug, name, value in question.conditions
    ]


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the shown columns for `crmctl bulk import --excel-safe`: no text is a formula; a byte order mark for Excel."""
    lines = [delimited_row(["id", *columns])]
    for row in rows:
        values = {"created_at": row["createdAt"], "updated_at": row["updatedAt"]} | row["data"]
        lines.append(delimited_row([row["id"], *(values.get(slug) for slug in columns)], excel_safe=True))
    return b"\xef\xbb\xbf" + "".join(lines).encode()
