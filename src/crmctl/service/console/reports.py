"""Pages of reports: definition, runs, results and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor, log10
from typing import Any

from crmctl.models.field_paths import delimited_row
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import ListCell, is_numeric, value_cell, value_text
from crmctl.service.console.conditions_form import definition_values, definitions_of, in_words, refuse_unfinished, rows_of
from crmctl.service.console.pages import Pages
from crmctl.service.console.visits import ConsolePage, Download, Outcome, Redirect, Visit
from crmctl.service.definitions.definitions_file import parse_entry, refuse_taken_name, store_report
from crmctl.service.faults import BadRequest, check_shape
from crmctl.service.reports.report_definition import CURRENCY, FIELDS_OF_EVERY_RECORD, ReportDefinition
from crmctl.service.reports.report_run import run_report
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes, records, reports
from crmctl.service.store.tx import Tx
from crmctl.values.value_readers import canonical_uuid

MOST_BARS = 30
"""Further groups are in the table alone."""
WIDTH, ROW, LABELS, HEIGHT = 640, 26, 170, 240


@dataclass(frozen=True)
class ChartMark:
    """One group as a bar or a point, with its label and text."""

    label: str
    text: str
    x: float
    y: float
    length: float


@dataclass(frozen=True)
class Chart:
    """`kind` is `bars` or `line`; `ticks` are (position, text) along the axis of values; `zero` is where that begins."""

    kind: str
    title: str
    marks: list[ChartMark]
    ticks: list[tuple[float, str]]
    zero: float
    height: float
    left_out: int

    @property
    def points(self) -> str:
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


def draw(title: str, groups: Sequence[tuple[str, Any, str]], *, is_time: bool) -> Chart | None:
    """`groups` are (label, number, number as text) in the order of the results; None where there is nothing to compare."""
    drawable = [each for each in groups if isinstance(each[1], int | float | Decimal) and -(10**300) < each[1] < 10**300]
    shown = [(label, float(value), text) for label, value, text in drawable][: 400 if is_time else MOST_BARS]
    if len(shown) < 2:
        return None
    low, high = min(0.0, *(value for _, value, _ in shown)), max(0.0, *(value for _, value, _ in shown))
    if low == high:
        return None
    steps = _steps(low, high)
    left_out = len(groups) - len(shown)
    if is_time:
        return _line(title, sorted(shown), steps, left_out)
    scale = (WIDTH - LABELS - 90) / (steps[-1] - steps[0])

    def place(value: float) -> float:
        return LABELS + (value - steps[0]) * scale

    marks = [
        ChartMark(label, text, min(place(value), place(0)), 8 + index * ROW, max(1.0, abs(place(value) - place(0))))
        for index, (label, value, text) in enumerate(shown)
    ]
    return Chart("bars", title, marks, [(place(step), _short(step)) for step in steps], place(0), 8 + len(marks) * ROW + 24, left_out)


def _line(title: str, shown: Sequence[tuple[str, float, str]], steps: list[float], left_out: int) -> Chart:
    scale = (HEIGHT - 50) / (steps[-1] - steps[0])
    apart = (WIDTH - 100) / (len(shown) - 1)

    def place(value: float) -> float:
        return HEIGHT - 30 - (value - steps[0]) * scale

    marks = [ChartMark(label, text, 70 + index * apart, place(value), 0) for index, (label, value, text) in enumerate(shown)]
    return Chart("line", title, marks, [(place(step), _short(step)) for step in steps], place(0), HEIGHT, left_out)


def _steps(low: float, high: float) -> list[float]:
    """Round numbers that hold both ends: four to eight of them."""
    raw = (high - low) / 5
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = floor(low / step)
    count = 1
    while (first + count) * step < high:
        count += 1
    return [(first + index) * step for index in range(count + 1)]


def _short(value: float) -> str:
    for size, mark in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{mark}"
    return f"{value:.3g}"


PER_PAGE = 50


def _add_results(pages: Pages) -> None:
    @pages.get("/reports/{id:uuid}/runs/{runId:uuid}", is_slow=True)
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        report = reports.get_report(tx, visit.id("id"))
        run = reports.get_run(tx, report["id"], visit.id("runId"))
        columns = columns_of(tx, report, run["columns"])
        results, page = run["results"], visit.number("page", 1)
        last = max(1, -(-len(results) // PER_PAGE))
        page = min(page, last)
        part = results[(page - 1) * PER_PAGE : page * PER_PAGE]
        values = {
            "section": "reports",
            "report": report,
            "run": {name: run[name] for name in run if name != "results"},
            "columns": columns,
            "rows": _shown(tx, visit, report, columns, part),
            "first": (page - 1) * PER_PAGE + 1,
            "page": page,
            "last_page": last,
            "chart": _chart(report, columns, results) if page == 1 else None,
        }
        return ConsolePage("report_run.html", values)

    @pages.get("/reports/{id:uuid}/runs/{runId:uuid}/csv", is_slow=True)
    def download(tx: Tx, visit: Visit) -> Download:
        run = reports.get_run(tx, visit.id("id"), visit.id("runId"))
        lines = [delimited_row(run["columns"])]
        lines += [delimited_row([result.get(column) for column in run["columns"]], excel_safe=True) for result in run["results"]]
        return Download(b"\xef\xbb\xbf" + "".join(lines).encode(), "text/csv; charset=utf-8", f"report-{run['id'][-8:]}.csv")


def columns_of(tx: Tx, report: Mapping[str, Any], names: Sequence[str]) -> list[Json]:
    """Return `{name, title, type, target}` of each column, with readable titles."""
    found = attributes.list_attributes(tx, report["object"]["id"], include_inactive=True) if report["object"] else []
    by_slug = {attribute["slug"]: attribute for attribute in found}
    return [_column(name, by_slug) for name in names]


def columns_measured(measures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the column names that results use for the measures of a definition."""
    return [f"{each['function']}_{each['attribute']}" if each.get("attribute") else str(each["function"]) for each in measures]


def _column(name: str, by_slug: Mapping[str, Mapping[str, Any]]) -> Json:
    if name in by_slug:
        attribute = by_slug[name]
        target = (attribute["config"] or {}).get("allowed_object_id") if not attribute["isList"] else None
        return {"name": name, "title": attribute["name"], "type": attribute["type"], "target": target, "config": attribute["config"]}
    function, _, slug = name.partition("_")
    if function in ("sum", "avg", "min", "max", "count") and slug in by_slug:
        kind = AttributeType.NUMBER if function == "count" else by_slug[slug]["type"]
        words = {"sum": "Sum of", "avg": "Average of", "min": "Minimum", "max": "Maximum", "count": "Number with"}
        return {"name": name, "title": f"{words[function]} {by_slug[slug]['name']}", "type": kind, "target": None}
    titles = {
        **dict.fromkeys((CURRENCY, f"{CURRENCY}_code"), "Currency"),
        "count": "Number of records",
        "id": "Id",
        "created_at": "Created",
        "updated_at": "Changed",
    }
    kinds = {"count": AttributeType.NUMBER, "created_at": AttributeType.DATE, "updated_at": AttributeType.DATE}
    return {"name": name, "title": titles.get(name, name), "type": kinds.get(name, AttributeType.TEXT), "target": None}


def _shown(
    tx: Tx, visit: Visit, report: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], part: Sequence[Mapping[str, Any]]
) -> list[list[ListCell]]:
    slugs = {known["id"]: known["slug"] for known in visit.objects}
    labels: dict[str, dict[str, str]] = {}
    for column in columns:
        if column["target"] in slugs:
            ids = [value for result in part if isinstance(value := result.get(column["name"]), str) and canonical_uuid(value)]
            labels[column["name"]] = records.labels_of(tx, column["target"], ids)
    own = slugs.get(report["object"]["id"]) if report["object"] else None

    def cell(column: Mapping[str, Any], value: Any) -> ListCell:
        label = labels.get(column["name"], {}).get(value) if isinstance(value, str) else None
        if label is not None:
            return ListCell(label, path=f"/records/{slugs[column['target']]}/{value}")
        if column["name"] == "id" and own and isinstance(value, str):
            return ListCell(value, path=f"/records/{own}/{value}")
        return value_cell(column, value)

    return [[cell(column, result.get(column["name"])) for column in columns] for result in part]


def _chart(report: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Of the first figure of a report by groups."""
    if "groupBy" not in report["definition"] or len(columns) < 2:
        return None
    group, money = columns[0], columns[1]["name"] if columns[1]["name"].startswith(CURRENCY) else ""
    figure = columns[2 if money else 1]
    if not is_numeric(figure["type"]) or group["target"]:
        return None
    is_time = group["type"] == AttributeType.DATE
    has_several = bool(money) and len({result.get(money) for result in results}) > 1
    if is_time and has_several:
        return None
    groups: list[tuple[str, Any, str]] = []
    for result in results:
        label, value = value_text(group["type"], result.get(group["name"])), result.get(figure["name"])
        if label or not is_time:
            label = f"{label or 'none'} {result.get(money) or ''}".rstrip() if has_several else label
            groups.append((label or "none", value, value_text(figure["type"], value)))
    return draw(f"{figure['title']} by {group['title']}", groups, is_time=is_time)


RUNS_PER_PAGE = 25


def add_pages(pages: Pages) -> None:
    """Register the pages of a report's runs."""
    _add_results(pages)

    @pages.post("/reports/{id:uuid}/run", needs=MemberRole.MEMBER, in_transaction=False)
    def start_run(visit: Visit) -> Redirect:
        run = run_report(visit.context, visit.id("id"))
        return Redirect(f"/reports/{visit.id('id')}/runs/{run['id']}")


def page_values(tx: Tx, visit: Visit, report: Json) -> Json:
    page = visit.number("page", 1)
    runs = reports.list_runs(tx, report["id"], RUNS_PER_PAGE + 1, (page - 1) * RUNS_PER_PAGE)
    return {"asks": _asks(tx, report), "runs": runs[:RUNS_PER_PAGE], "page": page, "has_older": len(runs) > RUNS_PER_PAGE}


def _asks(tx: Tx, report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """In the words of the form."""
    asked, known = report["definition"], report["object"]

    def titles(names: Sequence[str]) -> list[str]:
        return [str(column["title"]) for column in columns_of(tx, report, names)]

    asks = [("Object", [known["pluralName"] if known else "deleted"])]
    if asked.get("filters"):
        slugs = [each["attributeSlug"] for each in asked["filters"]]
        asks.append(("Which records", in_words(asked["filters"], dict(zip(slugs, titles(slugs), strict=True)))))
    if asked.get("groupBy"):
        asks.append(("Groups by", titles([asked["groupBy"]])))
    if asked.get("groupBy") or asked.get("measures"):
        asks.append(("Figures", titles(columns_measured(asked.get("measures", [])) or ["count"])))
    else:
        asks.append(("Columns", titles(asked.get("columns") or []) or ["every attribute"]))
    if sort := asked.get("sort"):
        asks.append(("Order", [f"{titles([sort['field']])[0]}, {'descending' if sort.get('order') == 'desc' else 'ascending'}"]))
    return [*asks, ("At most", [f"{asked['limit']:,} results"])] if asked.get("limit") else asks


FUNCTIONS = {"count": "Number of records", "sum": "Sum of", "avg": "Average of", "min": "Minimum", "max": "Maximum"}
MEASURES = 3
"""Rows for measures in the form; YAML takes any number."""


def save(tx: Tx, visit: Visit, report: Json | None = None) -> Outcome:
    """Create a report, or change this one. Raises BadRequest and Conflict."""
    definition = _definition(tx, visit)
    refuse_taken_name(reports.list_reports(tx), definition.name, report["id"] if report else None)
    if report:
        reports.rename_report(tx, report["id"], definition.name)
    store_report(tx, definition, visit.session.member_id, **visit.stamp())
    report_id = next(each["id"] for each in reports.list_reports(tx) if each["name"] == definition.name)
    return Redirect(f"/reports/{report_id}", "saved" if report else "report-created")


def _definition(tx: Tx, visit: Visit) -> ReportDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(ReportDefinition, visit.raw("yaml"))
    refuse_unfinished(rows_of(visit.form))
    _refuse_unchosen(visit)
    definition = check_shape(ReportDefinition, _typed(tx, visit))
    assert isinstance(definition, ReportDefinition)
    return definition


def _refuse_unchosen(visit: Visit) -> None:
    """Raise BadRequest if the form asks for figures but names none."""
    if visit.text("kind") != "groups":
        return
    pairs = list(zip(visit.chosen("function"), visit.chosen("measured"), strict=False))
    for number, (function, slug) in enumerate(pairs, 1):
        if slug and not function:
            raise BadRequest(f"figure {number} names an attribute, and not what to tell of it", {"field": "measures"})
    if not visit.text("groupBy") and not any(function for function, _ in pairs):
        raise BadRequest("choose a figure, or what to group by", {"field": "measures"})


def _typed(tx: Tx, visit: Visit) -> Json:
    """The definition that the form says."""
    entry: Json = {"name": visit.text("name"), "object": visit.text("object")}
    if visit.text("description"):
        entry["description"] = visit.text("description")
    if conditions := definitions_of(tx, visit):
        entry["filters"] = conditions
    if visit.text("kind") == "groups":
        if visit.text("groupBy"):
            entry["groupBy"] = visit.text("groupBy")
        pairs = zip(visit.chosen("function"), visit.chosen("measured"), strict=False)
        entry["measures"] = [{"function": function} | ({"attribute": slug} if slug else {}) for function, slug in pairs if function]
    elif visit.chosen("column"):
        entry["columns"] = visit.chosen("column")
    if visit.text("sort"):
        entry["sort"] = {"field": visit.text("sort"), "order": "desc" if visit.text("order") == "desc" else "asc"}
    if visit.text("limit"):
        entry["limit"] = int(visit.text("limit")) if visit.text("limit").isdecimal() else visit.text("limit")
    return entry


def form_values(tx: Tx, visit: Visit, stored: Json, is_sent: bool) -> Json:
    entry = _typed(tx, visit) if is_sent else stored
    slug = visit.query.get("object") or entry.get("object") or (visit.objects[0]["slug"] if visit.objects else "")
    entry = {"name": "", **entry, "object": slug}
    values = definition_values(tx, visit, entry, "filters")
    measures = [(each["function"], each.get("attribute", "")) for each in entry.get("measures", [])]
    return values | {
        "entry": {"columns": [], "groupBy": "", "sort": None, "limit": "", **entry},
        "functions": FUNCTIONS,
        "measures": [*measures, *[("", "")] * (MEASURES - len(measures))],
        "is_grouped": bool(entry.get("groupBy") or entry.get("measures")),
        "sortable": [
            *FIELDS_OF_EVERY_RECORD[1:],
            *(each["slug"] for each in values["attributes"]),
            *columns_measured(entry.get("measures", [])),
        ],
    }
