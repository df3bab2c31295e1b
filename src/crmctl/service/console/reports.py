"""Pages of reports: definition, runs, results and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import floor, log10
from typing import Any, get_args

from crmctl.frozen import frozen
from crmctl.models.field_paths import delimited_row
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import cells_of, first_day, is_numeric, reference_target, value_text
from crmctl.service.console.conditions_form import definition_values, definitions_of, in_words, refuse_unfinished, rows_of
from crmctl.service.console.visits import ConsolePage, Download, Outcome, Redirect, Visit
from crmctl.service.definitions.definitions_file import parse_entry, refuse_taken_name, store_report
from crmctl.service.faults import BadRequest, check_shape
from crmctl.service.reports.report_definition import CURRENCY, FIELDS_OF_EVERY_RECORD, Period, ReportDefinition, run_report
from crmctl.service.store import objects, reports
from crmctl.service.store.tx import Tx

MOST_BARS = 30
"""Further groups are in the table alone."""
BAR, LINE = 36, 240
"""Heights in pixels. Widths are percentages, so that texts keep their size on a narrow screen."""
LARGEST, SMALLEST = 1e300, 1e-300
"""Charts show no larger numbers; a line needs no smaller height, whose steps would round to nothing."""


@frozen
class ChartMark:
    """One group as a bar or a point, with its label and text; `x` and `length` in percent of the width."""

    label: str
    text: str
    x: float
    y: float
    length: float = 0


@frozen
class Chart:
    """Bars, or with `ticks` a line: (height, text) along its axis."""

    title: str
    marks: list[ChartMark]
    ticks: list[tuple[float, str]]
    height: float
    left_out: int

    @property
    def points(self) -> str:
        return " ".join(f"{mark.x:.2f},{mark.y:.1f}" for mark in self.marks)


def draw(title: str, groups: Sequence[tuple[str, Any, str]]) -> Chart | None:
    """Return bars for groups `(label, number, number as text)` in the order of the results, None if there is nothing to compare."""
    shown = [(label, float(value), text) for label, value, text in groups if _is_drawable(value)][:MOST_BARS]
    low, high = _ends([value for _, value, _ in shown])
    if len(shown) < 2 or low == high:
        return None
    marks = [
        ChartMark(label, text, 100 * (min(value, 0) - low) / (high - low), index * BAR, 100 * abs(value) / (high - low))
        for index, (label, value, text) in enumerate(shown)
    ]
    return Chart(title, marks, [], len(marks) * BAR, len(groups) - len(shown))


def draw_line(title: str, groups: Sequence[tuple[str, Any, str]]) -> Chart | None:
    """Return a line over dates or periods `(date, number, number as text)`, at their places in time."""
    shown = sorted((first_day(label), label, float(value), text) for label, value, text in groups if _is_drawable(value))
    low, high = _ends([value for _, _, value, _ in shown])
    if len(shown) < 2 or high - low < SMALLEST or shown[0][0] == shown[-1][0]:
        return None
    first, last, steps = shown[0][0], shown[-1][0], _steps(low, high)

    def height(value: float) -> float:
        return LINE - 30 - (value - steps[0]) * (LINE - 50) / (steps[-1] - steps[0])

    marks = [
        ChartMark(value_text(AttributeType.DATE, on), text, 100 * (at - first) / (last - first), height(v)) for at, on, v, text in shown
    ]
    return Chart(title, marks, [(height(step), _short(step)) for step in steps], LINE, len(groups) - len(shown))


def _is_drawable(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and -LARGEST < value < LARGEST


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(0.0, *values, 0.0), max(0.0, *values, 0.0)


def _steps(low: float, high: float) -> list[float]:
    """Return four to eight round numbers around both ends."""
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


FUNCTIONS = {"count": "Number of records", "sum": "Sum of", "avg": "Average of", "min": "Minimum", "max": "Maximum"}
PER_PAGE, RUNS_PER_PAGE = 50, 25


def start_run(visit: Visit) -> Redirect:
    run = run_report(visit.context, visit.id("id"))
    return Redirect(f"/reports/{visit.id('id')}/runs/{run['id']}")


def show_run(tx: Tx, visit: Visit) -> ConsolePage:
    report = reports.get_report(tx, visit.id("id"))
    run = reports.get_run(tx, report["id"], visit.id("runId"))
    columns = columns_of(tx, report, run["columns"])
    results = run.pop("results")
    part = visit.part(lambda limit, offset: results[offset : offset + limit], PER_PAGE)
    values = {
        **part,
        "report": report,
        "run": run,
        "columns": columns,
        "rows": cells_of(tx, columns, [{"data": result} for result in part["rows"]], visit),
        "chart": _chart(report, columns, results) if part["page"] == 1 else None,
    }
    return ConsolePage("report_run.html", values)


def download(tx: Tx, visit: Visit) -> Download:
    run = reports.get_run(tx, visit.id("id"), visit.id("runId"))
    lines = [delimited_row(run["columns"])]
    lines += [delimited_row([result.get(column) for column in run["columns"]], excel_safe=True) for result in run["results"]]
    return Download(b"\xef\xbb\xbf" + "".join(lines).encode(), "text/csv; charset=utf-8", f"report-{run['id'][-8:]}.csv")


def columns_of(tx: Tx, report: Mapping[str, Any], names: Sequence[str]) -> list[Json]:
    """Return each column as an attribute with a readable name; `slug` is the column's name."""
    described = objects.list_attributes(tx, report["object"]["id"], include_inactive=True) if report["object"] else []
    by_slug = {attribute["slug"]: attribute for attribute in described}
    own = {"type": AttributeType.REFERENCE, "config": {"allowed_object_id": report["object"]["id"]}} if report["object"] else {}
    return [_column(name, by_slug) | (own if name == "id" else {}) for name in names]


def columns_measured(measures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the column names that results use for the measures of a definition."""
    return [
        f"{measure['function']}_{measure['attribute']}" if measure.get("attribute") else str(measure["function"]) for measure in measures
    ]


def _column(name: str, by_slug: Mapping[str, Json]) -> Json:
    if name in by_slug:
        return by_slug[name]
    function, _, slug = name.partition("_")
    titles = {
        **dict.fromkeys((CURRENCY, f"{CURRENCY}_code"), "Currency"),
        "count": "Number of records",
        "id": "Id",
        "created_at": "Created",
        "updated_at": "Changed",
    }
    kinds = {"count": AttributeType.NUMBER, "created_at": AttributeType.DATE, "updated_at": AttributeType.DATE}
    title, kind = titles.get(name, name), kinds.get(name, AttributeType.TEXT)
    if function in FUNCTIONS and slug in by_slug:
        counts = function == "count"
        title = f"{'Number with' if counts else FUNCTIONS[function]} {by_slug[slug]['name']}"
        kind = AttributeType.NUMBER if counts else by_slug[slug]["type"]
    return {"id": "", "slug": name, "name": title, "type": kind, "config": None, "isList": False}


def _chart(report: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Return a chart of the first figure of a report by groups, over time only if there is one currency."""
    definition = report["definition"]
    if "groupBy" not in definition or len(columns) < 2:
        return None
    group, money = columns[0], columns[1]["slug"] if columns[1]["slug"].startswith(CURRENCY) else ""
    figure = columns[2 if money else 1]
    if not is_numeric(figure["type"]) or reference_target(group):
        return None
    title = f"{figure['name']} by {group['name']}{_period_text(definition)}"
    has_several = bool(money) and len({result.get(money) for result in results}) > 1
    is_time = group["type"] == AttributeType.DATE and not has_several
    groups: list[tuple[str, Any, str]] = []
    for result in results:
        key, value = result.get(group["slug"]), result.get(figure["slug"])
        code = result.get(money) if money else None
        text = value_text(figure["type"], {"amount": value, "currency": code} if code and value is not None else value)
        if is_time and key:
            groups.append((key, value, text))
        elif not is_time:
            groups.append((value_text(group["type"], key) or "none", value, text))
    return draw_line(title, groups) if is_time else draw(title, groups)


def _period_text(asked: Mapping[str, Any]) -> str:
    return f" (by {asked['groupPeriod']})" if asked.get("groupPeriod") else ""


def page_values(tx: Tx, visit: Visit, report: Json) -> Json:
    runs = visit.part(lambda limit, offset: reports.list_runs(tx, report["id"], limit, offset), RUNS_PER_PAGE)
    return {"asks": _asks(tx, report), **runs}


def _asks(tx: Tx, report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    definition, crm_object = report["definition"], report["object"]

    def titles(names: Sequence[str]) -> list[str]:
        return [str(column["name"]) for column in columns_of(tx, report, names)]

    asks = [("Object", [crm_object["pluralName"] if crm_object else "deleted"])]
    if definition.get("filters"):
        slugs = [condition["attributeSlug"] for condition in definition["filters"]]
        known_columns = {column["slug"]: (column["name"], column["type"]) for column in columns_of(tx, report, slugs)}
        asks.append(("Which records", in_words(definition["filters"], known_columns)))
    if definition.get("groupBy"):
        asks.append(("Grouped by", [titles([definition["groupBy"]])[0] + _period_text(definition)]))
    if definition.get("groupBy") or definition.get("measures"):
        asks.append(("Figures", titles(columns_measured(definition.get("measures", [])) or ["count"])))
    else:
        asks.append(("Columns", titles(definition.get("columns") or []) or ["every attribute"]))
    if sort := definition.get("sort"):
        asks.append(("Order", [f"{titles([sort['field']])[0]}, {'descending' if sort.get('order') == 'desc' else 'ascending'}"]))
    return [*asks, ("At most", [f"{definition['limit']:,} results"])] if definition.get("limit") else asks


MEASURES = 3
"""Rows for measures in the form; YAML takes any number."""


def save(tx: Tx, visit: Visit, report: Json | None = None) -> Outcome:
    """Create a report, or change this one. Raises BadRequest and Conflict."""
    definition = _definition(tx, visit)
    refuse_taken_name(reports.list_reports(tx), definition.name, report["id"] if report else None)
    if report:
        reports.rename_report(tx, report["id"], definition.name)
    store_report(tx, definition, visit.session.member_id, **visit.stamp())
    report_id = next(report["id"] for report in reports.list_reports(tx) if report["name"] == definition.name)
    return Redirect(f"/reports/{report_id}", "saved" if report else "report-created")


def _definition(tx: Tx, visit: Visit) -> ReportDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(ReportDefinition, visit.raw("yaml"))
    refuse_unfinished(rows_of(visit.form))
    _refuse_unchosen(visit)
    return check_shape(ReportDefinition, _typed(tx, visit))


def _refuse_unchosen(visit: Visit) -> None:
    """Raise BadRequest if the form asks for figures but names none."""
    if visit.text("kind") != "groups":
        return
    pairs = list(zip(visit.chosen("function"), visit.chosen("measured"), strict=False))
    for number, (function, slug) in enumerate(pairs, 1):
        if slug and not function:
            raise BadRequest(f"choose what figure {number} shows of its attribute", {"field": "measures"})
    if not visit.text("groupBy") and not any(function for function, _ in pairs):
        raise BadRequest("choose a figure, or what to group by", {"field": "measures"})


def _typed(tx: Tx, visit: Visit) -> Json:
    entry: Json = {"name": visit.text("name"), "object": visit.text("object")}
    more: Json = {"description": visit.text("description"), "filters": definitions_of(tx, visit)}
    if visit.text("kind") == "groups":
        pairs = zip(visit.chosen("function"), visit.chosen("measured"), strict=False)
        entry["measures"] = [{"function": function} | ({"attribute": slug} if slug else {}) for function, slug in pairs if function]
        more |= {name: visit.text(name) for name in ("groupBy", "groupPeriod")}
    else:
        more["columns"] = visit.chosen("column")
    if visit.text("sort"):
        entry["sort"] = {"field": visit.text("sort"), "order": "desc" if visit.text("order") == "desc" else "asc"}
    if limit := visit.text("limit"):
        entry["limit"] = int(limit) if limit.isdecimal() and len(limit) < 10 else limit
    return entry | {name: value for name, value in more.items() if value}


def form_values(tx: Tx, visit: Visit, stored: Json, is_sent: bool) -> Json:
    entry = _typed(tx, visit) if is_sent else stored
    slug = visit.query.get("object") or entry.get("object") or (visit.objects[0]["slug"] if visit.objects else "")
    entry = {"name": "", **entry, "object": slug}
    values = definition_values(tx, visit, entry, "filters")
    measures = [(measure["function"], measure.get("attribute", "")) for measure in entry.get("measures", [])]
    return values | {
        "entry": {"columns": [], "groupBy": "", "groupPeriod": "", "sort": None, "limit": "", **entry},
        "functions": FUNCTIONS,
        "periods": get_args(Period),
        "measures": [*measures, *[("", "")] * (MEASURES - len(measures))],
        "is_grouped": bool(entry.get("groupBy") or entry.get("measures")),
        "sortable": [
            *FIELDS_OF_EVERY_RECORD[1:],
            *(attribute["slug"] for attribute in values["attributes"]),
            *columns_measured(entry.get("measures", [])),
        ],
    }
