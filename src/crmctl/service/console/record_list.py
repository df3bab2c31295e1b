"""Pages of an object's records: the list with its filters, columns and pages, as CSV, and what a reference may be called."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.models.filters import Condition
from crmctl.service.console.conditions_form import OPERATORS, Rows, blamed, needs_no_value, refuse_unfinished, rows_of
from crmctl.service.console.pages import ConsolePage, Download, Pages, Redirect, Visit
from crmctl.service.console.value_texts import ShownValue, is_numeric, value_text
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import attributes, objects, record_labels, records
from crmctl.service.store.records import Paging, PartOfList
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid
from crmctl.service.values.conditions import read_condition

PER_PAGE = 25
MOST_IN_CSV = 10_000
FIRST_COLUMNS = 6

SORTS = {
    "newest": ("Newest first", "newest", Paging("created_at", "desc")),
    "oldest": ("Oldest first", "oldest", Paging("created_at", "asc")),
    "changed": ("Changed last", "last changed", Paging("updated_at", "desc")),
    "unchanged": ("Unchanged longest", "longest unchanged", Paging("updated_at", "asc")),
}
"""Orders: what they are called, what those are called that come first, and how they are asked for."""

TIMES = {"created_at": "Created", "updated_at": "Changed"}


@dataclass(frozen=True)
class ListQuestion:
    """What the address of a list asks: conditions as they were typed, columns by slug, the order, and to look through all, however long it
    takes."""

    conditions: Rows
    columns: tuple[str, ...]
    sort: str
    is_complete: bool = False

    def query(self, **more: Any) -> str:
        """As it stands in an address, with more parameters, each ending in `&`."""
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
        rows, _ = records.list_records(tx, known["id"], _conditions(question), page)
        return Download(_csv(question.columns, rows), "text/csv; charset=utf-8", f"{known['slug']}.csv")

    @pages.get("/records/{slug}/lookup", is_slow=True)
    def look_up(tx: Tx, visit: Visit) -> Download:
        """For the script of a reference's field: `[{id, label, about}]`."""
        found = record_labels.find_by_label(tx, object_of(tx, visit)["id"], visit.query.get("q", "")[:200])
        return Download(jsontext.dumps(found).encode(), "application/json")


def object_of(tx: Tx, visit: Visit) -> dict[str, Any]:
    """The object of the path's slug. Raises NotFound."""
    known = objects.find_object_by_slug(tx, str(visit.path["slug"]))
    if known is None:
        raise NotFound(f"there is no object {visit.path['slug']!r}")
    return known


def cells_of(tx: Tx, shown: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], visit: Visit) -> list[list[ShownValue]]:
    """The values of these attributes, record by record; references are called by their names."""
    slugs = {known["id"]: known["slug"] for known in visit.objects}
    named: dict[str, dict[str, str]] = {}
    for attribute in shown:
        if target := reference_target(attribute):
            ids = [value for row in rows if isinstance(value := row["data"].get(attribute["slug"]), str)]
            named.setdefault(target, {}).update(record_labels.labels_of(tx, target, ids) if target in slugs else {})
    return [[_cell(attribute, row["data"].get(attribute["slug"]), named, slugs) for attribute in shown] for row in rows]


def reference_target(attribute: Mapping[str, Any]) -> str | None:
    """The id of the object that a single reference leads to."""
    is_single = attribute["type"] == AttributeType.REFERENCE and not attribute["isList"]
    return str(attribute["config"]["allowed_object_id"]) if is_single else None


def labels_in(tx: Tx, found: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> dict[str, str]:
    """What the records are called that the data refers to, by their ids; of what is no id, and of what is gone, nothing."""
    labels: dict[str, str] = {}
    for attribute in found:
        value, target = data.get(attribute["slug"]), reference_target(attribute)
        if target and isinstance(value, str) and canonical_uuid(value):
            labels |= record_labels.labels_of(tx, target, [value])
    return labels


def _cell(attribute: Mapping[str, Any], value: Any, named: Mapping[str, Mapping[str, str]], slugs: Mapping[str, str]) -> ShownValue:
    target = reference_target(attribute)
    if target is None or not isinstance(value, str):
        return ShownValue(value_text(attribute["type"], value), is_number=is_numeric(attribute["type"]))
    label = named.get(target, {}).get(value)
    return ShownValue(f"…{value[-8:]} (deleted)") if label is None else ShownValue(label, f"/records/{slugs[target]}/{value}")


def _list(tx: Tx, visit: Visit) -> ConsolePage:
    known = object_of(tx, visit)
    found = attributes.list_attributes(tx, known["id"])
    question, page, error = _question(visit, found), visit.number("page", 1), None
    _, first_ones, paging = SORTS[question.sort]
    part = PartOfList([], 0, 0, 0)
    try:
        here = Paging(paging.sort, paging.order, PER_PAGE, (page - 1) * PER_PAGE)
        part = _part(tx, known["id"], question, here)
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
        "operators": OPERATORS,
        "sorts": SORTS,
        "error": error,
        "most_in_csv": MOST_IN_CSV,
    }
    return ConsolePage("records.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)


def _part(tx: Tx, object_id: str, question: ListQuestion, page: Paging) -> PartOfList:
    """Raises BadRequest."""
    if not question.is_complete:
        return records.list_part(tx, object_id, _conditions(question), page)
    everything = records.count_records(tx, object_id)
    return PartOfList(*records.list_records(tx, object_id, _conditions(question), page), everything, everything)


def _question(visit: Visit, found: Sequence[Mapping[str, Any]]) -> ListQuestion:
    """What is asked, as far as it can be: a name that is not there is left out of the columns and is an error of a condition."""
    conditions = rows_of(visit.queries)
    known = [attribute["slug"] for attribute in found] + list(TIMES)
    asked = [slug for slug in dict.fromkeys(visit.queries.get("column", ())) if slug in known]
    columns = tuple(asked or [*known[: min(FIRST_COLUMNS, len(found))], "created_at"])
    sort = visit.query.get("sort", "newest")
    return ListQuestion(conditions, columns, sort if sort in SORTS else "newest", visit.query.get("all") == "1")


def _conditions(question: ListQuestion) -> list[Condition]:
    """Raises BadRequest."""
    refuse_unfinished(question.conditions)
    return [read_condition(slug, name, "true" if needs_no_value(name) else value) for slug, name, value in question.conditions]


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The columns that are shown, with their slugs as header, as `crmctl bulk import` reads them back; a byte order mark for Excel."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["id", *columns])
    for row in rows:
        known = {"created_at": row["createdAt"], "updated_at": row["updatedAt"]} | row["data"]
        writer.writerow([row["id"], *(_csv_text(known.get(slug)) for slug in columns)])
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def _csv_text(value: Any) -> str:
    """Text as it is, anything else as JSON: nothing is lost, and an import takes it back."""
    return "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
