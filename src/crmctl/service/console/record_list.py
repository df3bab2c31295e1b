"""The list of an object's records with its search, filters, columns, order and CSV, and the look-up of names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import cells_of, labels_in, reference_target
from crmctl.service.console.conditions_form import (
    OPERATOR_TYPES,
    PERIODS,
    Rows,
    condition_text,
    day_after,
    days_of,
    filters_for,
    midnight,
    money_of,
    needs_no_value,
    refuse_unfinished,
    rows_of,
    stored_value,
    with_targets,
)
from crmctl.service.console.record_form import USUAL_PARTS, part_attributes
from crmctl.service.console.visits import ConsolePage, Download, Redirect, Visit, fields_of
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Forbidden, NotFound
from crmctl.service.store import objects, preferences, records
from crmctl.service.store.condition_sql import MAX_CONDITIONS, Where, read_condition, too_many_conditions
from crmctl.service.store.record_pages import SORTS
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.records import Paging, PartOfList
from crmctl.service.store.tx import Tx
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.values.value_readers import canonical_uuid

PER_PAGE = 25
FIRST_COLUMNS, MOST_TICKS = 6, 60
MOST_FOUND = 5
"""Records of each object on the page of a search."""
NEWEST = "-created_at"

TIMES = {"created_at": "Created", "updated_at": "Changed"}
_TIME_ATTRIBUTES = [{"slug": slug, "name": name, "type": AttributeType.DATE, "config": None} for slug, name in TIMES.items()]
_AFTER_DAY = {str(Operator.GREATER_THAN): str(Operator.GREATER_THAN_OR_EQUAL), str(Operator.LESS_THAN_OR_EQUAL): str(Operator.LESS_THAN)}
"""To compare a moment with a whole day: the chosen operator, and the one that compares with the end of that day instead."""
_FIRST_ONES = {NEWEST: "newest", "created_at": "oldest", "-updated_at": "last changed", "updated_at": "longest unchanged"}


@frozen
class ListQuestion:
    """The question in the address of a list: words, conditions as typed, ticked options and columns by slug, and what sorts it.

    A minus before the slug means descending; `is_complete` searches every record.
    """

    words: str
    conditions: Rows
    options: Mapping[str, Sequence[str]]
    """Ticked options by slug. A record has only one of an attribute, so several mean any of them."""
    columns: tuple[str, ...]
    sort: str
    first_columns: tuple[str, ...] = ()
    """The columns of the list as it first opens."""
    is_complete: bool = False

    def pairs(self) -> list[tuple[str, str]]:
        pairs = [pair for slug, name, value in self.conditions for pair in (("where", slug), ("op", name), ("value", value))]
        pairs += [("tick", f"{slug}:{option}") for slug, options in self.options.items() for option in options]
        pairs += [("q", self.words)] if self.words else []
        pairs += [("column", slug) for slug in self.columns if self.columns != self.first_columns]
        return pairs + ([("sort", self.sort)] if self.sort != NEWEST else []) + ([("all", "1")] if self.is_complete else [])

    def query(self) -> str:
        """Return the query string of the address."""
        return urlencode(self.pairs())

    def link(self, **more: Any) -> str:
        """Return the end of an address that asks this, with more parameters: its query string after a `?`, or nothing."""
        pairs = self.pairs() + [(name, str(value)) for name, value in more.items()]
        return f"?{urlencode(pairs)}" if pairs else ""

    @property
    def is_plain(self) -> bool:
        return not self.pairs()

    @property
    def filter_count(self) -> int:
        return len(self.conditions) + len(self.options)

    def sorted_by(self, slug: str) -> ListQuestion:
        """Return the list that a click on the header of a column leads to: ascending first, then descending."""
        return replace(self, sort=f"-{slug}" if self.sort == slug else slug)


def first_object(_tx: Tx, visit: Visit) -> Redirect:
    return Redirect(f"/records/{visit.objects[0]['slug']}" if visit.objects else "/objects")


def download(tx: Tx, visit: Visit) -> Download:
    crm_object = object_of(tx, visit)
    return csv_of(tx, visit, crm_object, question_of(visit.queries, crm_object))


def look_up(tx: Tx, visit: Visit) -> Download:
    """Answer the script of a reference field: `[{id, label, about}]`."""
    matches = records.find_by_label(tx, object_of(tx, visit)["id"], visit.query.get("q", "")[:200])
    return Download(jsontext.dumps(matches).encode(), "application/json")


def search(tx: Tx, visit: Visit) -> ConsolePage:
    return ConsolePage("search.html", {"words": visit.query.get("q", "")[:200].strip(), "groups": _found(tx, visit, MOST_FOUND + 1)})


def search_while_typing(tx: Tx, visit: Visit) -> Download:
    """Answer the script of the search box: `[{path, label, about}]`."""
    hits = [
        {
            "path": f"/records/{crm_object['slug']}/{match['id']}",
            "label": match["label"],
            "about": f"{crm_object['singularName']} · {match['about']}",
        }
        for crm_object, matches in _found(tx, visit, 3)
        for match in matches
    ]
    return Download(jsontext.dumps(hits[:10]).encode(), "application/json")


def save_view(tx: Tx, visit: Visit) -> Redirect:
    crm_object, name = object_of(tx, visit), visit.text("name")
    question = question_of(fields_of(visit.raw("query").encode()), crm_object)
    is_shared = bool(visit.text("shared")) and visit.may_write
    # Saving under the name of a view changes that view.
    same = [view for view in preferences.list_views(tx, crm_object["id"], visit.actor) if view["name"] == name and may_change(visit, view)]
    owner = next((view["owner"] for view in same if view["isShared"] and is_shared), visit.actor)
    preferences.save_view(
        tx, crm_object["id"], visit.context.ids(), {"name": name, "query": question.query(), "owner": owner, "isShared": is_shared}
    )
    return Redirect(f"/records/{crm_object['slug']}{question.link()}", "view-saved")


def delete_view(tx: Tx, visit: Visit) -> Redirect:
    crm_object = object_of(tx, visit)
    view = preferences.get_view(tx, crm_object["id"], visit.text("view"))
    if not may_change(visit, view):
        raise Forbidden("only its owner or an admin deletes a view")
    preferences.delete_view(tx, crm_object["id"], view["id"])
    return Redirect(f"/records/{crm_object['slug']}", "view-deleted")


def list_to_save(tx: Tx, visit: Visit) -> ConsolePage:
    return list_page(tx, replace(visit, queries=fields_of(visit.raw("query").encode())))


def _found(tx: Tx, visit: Visit, limit: int) -> list[tuple[Mapping[str, Any], list[dict[str, str]]]]:
    """Return the objects with records whose names hold every word of the search, and up to `limit` of those."""
    groups = [
        (crm_object, records.find_by_label(tx, crm_object["id"], visit.query.get("q", "")[:200], limit)) for crm_object in visit.objects
    ]
    return [(crm_object, matches) for crm_object, matches in groups if matches]


def object_of(tx: Tx, visit: Visit) -> Json:
    """Return the object named in the path with its active `attributes`. Raises NotFound."""
    crm_object = objects.find_object_by_slug(tx, str(visit.path["slug"]))
    if crm_object is None:
        raise NotFound(f"there is no object {visit.path['slug']!r}")
    return crm_object | {"attributes": objects.list_attributes(tx, crm_object["id"])}


def list_page(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object = object_of(tx, visit)
    own_attributes = crm_object["attributes"]
    question, page, error = question_of(visit.queries, crm_object), visit.number("page", 1), visit.error.message if visit.error else None
    part = PartOfList([], 0, 0, 0)
    try:
        part = part_of(tx, visit, question, crm_object, Paging(limit=PER_PAGE, offset=(page - 1) * PER_PAGE))
    except BadRequest as problem:
        error = problem.message
    shown = _shown(crm_object, question)
    listed_views = [
        (view, question_of(fields_of(view["query"].encode()), crm_object))
        for view in preferences.list_views(tx, crm_object["id"], visit.actor)
    ]
    view = next((view for view, saved in listed_views if saved == question), None)
    values = {
        "object": crm_object,
        "attributes": [*with_targets(visit, own_attributes), *_TIME_ATTRIBUTES],
        "filterable": [*with_targets(visit, own_attributes), *part_attributes(own_attributes), *_TIME_ATTRIBUTES],
        "ticks": [(attribute, question.options.get(slug, ())) for slug, attribute in _with_ticks(own_attributes).items()],
        "shown": shown,
        "times": [(slug, name) for slug, name in TIMES.items() if slug in question.columns],
        "rows": [
            (record, records.version_of(record), (cells[0].text if cells else "") or label, cells)
            for record, (_, label), cells in zip(
                part.records, labelled(tx, crm_object, part.records), cells_of(tx, shown, part.records, visit), strict=True
            )
        ],
        "part": part,
        "first_ones": _FIRST_ONES.get(question.sort, ""),
        "first": (page - 1) * PER_PAGE + 1,
        "page": page,
        "question": question,
        "chips": _chips(tx, question, own_attributes),
        "operators": filters_for,
        "operator_types": OPERATOR_TYPES,
        "views": listed_views,
        "view": view,
        "may_delete_view": bool(view and may_change(visit, view)),
        "changeable": list(filter(is_changeable, own_attributes)),
        "error": error,
    }
    return ConsolePage("records.html", values)


def _shown(crm_object: Json, question: ListQuestion) -> list[Json]:
    """Return the attributes whose columns a list shows, in their order."""
    by_slug = {attribute["slug"]: attribute for attribute in crm_object["attributes"]}
    return [by_slug[slug] for slug in question.columns if slug in by_slug]


def may_change(visit: Visit, view: Json) -> bool:
    return bool(view["owner"] == visit.actor or (view["isShared"] and visit.may_administer))


def labelled(tx: Tx, crm_object: Mapping[str, Any], shown: Sequence[Json]) -> list[tuple[str, str]]:
    """Return the id and the name of each record."""
    naming = records.naming_attributes(load_schema(tx, crm_object["id"]))
    return [(record["id"], records.label_of(naming, record["id"], record["data"])) for record in shown]


def label_of(tx: Tx, crm_object: Mapping[str, Any], record: Json) -> str:
    return labelled(tx, crm_object, [record])[0][1]


def is_changeable(attribute: Mapping[str, Any]) -> bool:
    """Whether many records may get the same value: not of unique attributes, nor of those with parts."""
    return not attribute["isUnique"] and attribute["type"] not in USUAL_PARTS


def _with_ticks(described: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the select attributes by slug whose options can be ticked, as many as make a page of a bounded size."""
    chosen, count = dict[str, Mapping[str, Any]](), 0
    for attribute in described:
        if attribute["type"] == AttributeType.SELECT and not attribute["isList"]:
            count += len(attribute["config"]["options"])
            chosen |= {attribute["slug"]: attribute} if count <= MOST_TICKS else {}
    return chosen


def _chips(tx: Tx, question: ListQuestion, own_attributes: Sequence[Json]) -> list[tuple[str, str]]:
    """Return each condition in words, with the end of the address that drops it; the ticked options of an attribute are one condition."""
    by_slug = {attribute["slug"]: attribute for attribute in own_attributes}
    described = (*_TIME_ATTRIBUTES, *own_attributes, *part_attributes(own_attributes))
    names_by_slug = {attribute["slug"]: (attribute["name"], attribute["type"]) for attribute in described}
    chips = [(f"“{question.words}”", replace(question, words="").link())] if question.words else []
    for place, (slug, name, value) in enumerate(question.conditions):
        labels = labels_in(tx, [by_slug[slug]], [{slug: value}]) if slug in by_slug else {}
        shown = "" if needs_no_value(name) else labels.get(value, value)
        others = question.conditions[:place] + question.conditions[place + 1 :]
        chips.append((condition_text((slug, name, shown), names_by_slug), replace(question, conditions=others).link()))
    for slug, chosen in question.options.items():
        rest = {other: options for other, options in question.options.items() if other != slug}
        text = condition_text((slug, Operator.EQUALS, " or ".join(chosen)), names_by_slug)
        chips.append((text, replace(question, options=rest).link()))
    return chips


def part_of(tx: Tx, visit: Visit, question: ListQuestion, crm_object: Json, page: Paging) -> PartOfList:
    """Return a page of the list. Raises BadRequest."""
    slug, order = question.sort.removeprefix("-"), "desc" if question.sort.startswith("-") else "asc"
    search = records.Search(tx, crm_object["id"], *matches_of(tx, visit, question, crm_object))
    if slug not in SORTS:
        return search.sorted_part(records.order_by(tx, crm_object["id"], slug), replace(page, order=order))
    return search.part(replace(page, sort=slug, order=order), is_complete=question.is_complete)


def question_of(fields: Mapping[str, list[str]], crm_object: Json) -> ListQuestion:
    """Return the question of an address or a form. Unknown columns are dropped; unknown attributes in conditions become errors later."""
    slugs = [attribute["slug"] for attribute in crm_object["attributes"]]
    first, sortable = (*slugs[:FIRST_COLUMNS], "created_at"), [*slugs, *TIMES]
    columns = [slug for slug in dict.fromkeys(fields.get("column", ())) if slug in sortable]
    [sort], [words] = fields.get("sort", [NEWEST])[:1], fields.get("q", [""])[:1]
    sort = sort if sort.removeprefix("-") in sortable else NEWEST
    ticked, conditions, options = _with_ticks(crm_object["attributes"]), list[tuple[str, str, str]](), dict[str, list[str]]()
    ticks = (tick.partition(":") for tick in fields.get("tick", ()))
    for row in (*rows_of(fields), *((slug, str(Operator.EQUALS), option) for slug, _, option in ticks if option)):
        slug, name, value = row
        option = stored_value(ticked.get(slug), value)
        if slug not in ticked or name != Operator.EQUALS or option not in ticked[slug]["config"]["options"]:
            conditions.append(row)
        elif option not in options.setdefault(slug, []):
            options[slug].append(option)
    is_complete = fields.get("all", [""])[0] == "1"
    return ListQuestion(words.strip()[:200], tuple(conditions), options, tuple(columns) or first, sort, first, is_complete)


def list_path(crm_object: Json, query: str) -> str:
    """Return the address of a list as the query of its page says, without anything that is no part of a list."""
    fields = fields_of(query[:8000].encode())
    page = [("page", text) for text in fields.get("page", [])[:1] if text.isdecimal()]
    return f"/records/{crm_object['slug']}{question_of(fields, crm_object).link(**dict(page))}"


def matches_of(tx: Tx, visit: Visit, question: ListQuestion, crm_object: Json) -> tuple[list[Condition], list[Where]]:
    """Return the conditions of a list, and those that only SQL has: words in names, any of several options, parts of values.

    Periods become days, names of linked records ids. Raises BadRequest.
    """
    refuse_unfinished(question.conditions)
    if len(question.conditions) > MAX_CONDITIONS:
        raise too_many_conditions(len(question.conditions))
    object_id, own_attributes = crm_object["id"], crm_object["attributes"]
    by_slug, parts = (
        {attribute["slug"]: attribute for attribute in own_attributes},
        {attribute["slug"] for attribute in part_attributes(own_attributes)},
    )
    conditions, wheres = list[Condition](), records.words_in_names(tx, object_id, question.words)
    for slug, name, value in question.conditions:
        # A day of a moment is the whole day.
        after = day_after(value) if slug in TIMES and name in (Operator.EQUALS, Operator.NOT_EQUALS, *_AFTER_DAY) else ""
        if name in PERIODS or (after and name == Operator.EQUALS):
            first, after = (value, after) if after else days_of(name, visit.now(), visit.zone)
            if slug in TIMES:
                first, after = midnight(first, visit.zone), midnight(after, visit.zone)
            conditions += [Condition(slug, Operator.GREATER_THAN_OR_EQUAL, first), Condition(slug, Operator.LESS_THAN, after)]
            continue
        if after and name == Operator.NOT_EQUALS:
            wheres.append(records.is_outside(tx, slug, midnight(value, visit.zone), midnight(after, visit.zone)))
            continue
        if after:
            name, value = _AFTER_DAY[name], after
        if slug in by_slug and _is_one_amount(by_slug[slug]) and not needs_no_value(name):
            value, currency = money_of(value)
            named = Condition(f"{slug}.currency", Operator.EQUALS, currency)
            wheres += [records.part_condition(tx, object_id, named)] if currency else []
        stored = "true" if needs_no_value(name) else stored_value(by_slug.get(slug), value)
        stored = midnight(stored, visit.zone) if slug in TIMES else stored
        target = reference_target(by_slug[slug]) if slug in by_slug else None
        if target and stored == value and not needs_no_value(name) and not canonical_uuid(value):
            try:
                stored = records.id_called(tx, target, value)
            except BadRequest as error:
                raise BadRequest(f"{by_slug[slug]['name']}: {error.message}", {"field": "value", "slug": slug}) from error
        condition = read_condition(slug, name, stored)
        if slug in parts:
            wheres.append(records.part_condition(tx, object_id, condition))
        else:
            conditions.append(condition)
    conditions += [Condition(slug, Operator.EQUALS, options[0]) for slug, options in question.options.items() if len(options) == 1]
    several = [records.is_any_of(tx, object_id, slug, options) for slug, options in question.options.items() if len(options) > 1]
    return conditions, wheres + several


def _is_one_amount(attribute: Mapping[str, Any]) -> bool:
    return attribute["type"] == AttributeType.CURRENCY and not attribute["isList"]


CHUNK = 1000


def csv_of(tx: Tx, visit: Visit, crm_object: Json, question: ListQuestion, ids: Sequence[str] = ()) -> Download:
    """Return the columns of a list, in its order, for the records with these ids, or for all of the list. Raises BadRequest."""
    conditions, wheres = list[Condition](), list[Where]()
    if ids:
        wheres = [Where(f"id IN ({', '.join('?' * len(ids))})", tuple(ids))]
    else:
        conditions, wheres = matches_of(tx, visit, question, crm_object)
    order = Where(question.sort.removeprefix("-"))
    order = order if order.sql in SORTS else records.order_by(tx, crm_object["id"], order.sql)
    sequences = records.Search(tx, crm_object["id"], conditions, wheres).sequences(order, question.sort.startswith("-"))
    times = [slug for slug in TIMES if slug in question.columns]
    lines = _csv(visit.context, crm_object["id"], _shown(crm_object, question), times, sequences)
    return Download(lines, "text/csv; charset=utf-8", f"{crm_object['slug']}.csv")


def _csv(
    context: Context, object_id: str, shown: Sequence[Mapping[str, Any]], times: Sequence[str], sequences: Sequence[int]
) -> Iterator[bytes]:
    """Yield the CSV for spreadsheets: one column for each part of a value, names beside ids, formulas neutralised."""
    parts = {attribute["slug"]: USUAL_PARTS.get(attribute["type"], ()) if not attribute["isList"] else () for attribute in shown}
    parts |= {attribute["slug"]: ("amount", "currency") for attribute in shown if _is_one_amount(attribute)}
    names = [name for attribute in shown for name in _columns(attribute, parts[attribute["slug"]])]
    yield b"\xef\xbb\xbf" + delimited_row(["id", *names, *times]).encode()
    for start in range(0, len(sequences), CHUNK):

        def read(tx: Tx, chunk: Sequence[int] = sequences[start : start + CHUNK]) -> str:
            rows = list(records.records_at(tx, load_schema(tx, object_id), chunk))
            labels, lines = labels_in(tx, shown, rows), []
            for row in rows:
                cells = [
                    cell for attribute in shown for cell in _cells(attribute, parts[attribute["slug"]], row.get(attribute["slug"]), labels)
                ]
                lines.append(delimited_row([row["id"], *cells, *(row[slug] for slug in times)], excel_safe=True))
            return "".join(lines)

        yield context.engine.read(read).encode()


def _columns(attribute: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    slug = str(attribute["slug"])
    return [f"{slug}.{part}" for part in parts] or ([slug, f"{slug} name"] if reference_target(attribute) else [slug])


def _cells(attribute: Mapping[str, Any], parts: Sequence[str], value: Any, labels: Mapping[str, str]) -> list[Any]:
    """Return the value for each of its columns. A value without parts stands in the first one."""
    if parts:
        return [value.get(part) for part in parts] if isinstance(value, dict) else [value, *[None] * (len(parts) - 1)]
    return [value, labels.get(str(value))] if reference_target(attribute) else [value]
