"""The results of a report's run: formatted values page by page, a chart of groups, all of them as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.service.console.charts import Chart, draw
from crmctl.service.console.pages import ConsolePage, Download, Pages, Visit
from crmctl.service.console.value_texts import ShownValue, is_numeric, value_text
from crmctl.service.store import attributes, record_labels, reports
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid

PER_PAGE = 50


def add_pages(pages: Pages) -> None:
    """One run, and its file."""

    @pages.get("/reports/{reportId:uuid}/runs/{runId:uuid}", is_slow=True)
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        report = reports.get_report(tx, visit.id("reportId"))
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
            "mixes_currencies": _is_grouped(report) and any(each["type"] == AttributeType.CURRENCY for each in columns[1:] or columns),
            "chart": _chart(report, columns, results) if page == 1 else None,
        }
        return ConsolePage("report_run.html", values)

    @pages.get("/reports/{reportId:uuid}/runs/{runId:uuid}/csv", is_slow=True)
    def download(tx: Tx, visit: Visit) -> Download:
        run = reports.get_run(tx, visit.id("reportId"), visit.id("runId"))
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(run["columns"])
        for result in run["results"]:
            writer.writerow([_raw(result.get(column)) for column in run["columns"]])
        return Download(b"\xef\xbb\xbf" + text.getvalue().encode(), "text/csv; charset=utf-8", f"report-{run['id'][-8:]}.csv")


def columns_of(tx: Tx, report: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """`{name, title, type, target}` of each column: attributes by their names, figures by what they are of."""
    found = attributes.list_attributes(tx, report["object"]["id"], include_inactive=True) if report["object"] else []
    by_slug = {attribute["slug"]: attribute for attribute in found}
    return [_column(name, by_slug) for name in names]


def columns_measured(measures: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the results call the figures of a definition."""
    return [f"{each['function']}_{each['attribute']}" if each.get("attribute") else str(each["function"]) for each in measures]


def _column(name: str, by_slug: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if name in by_slug:
        attribute = by_slug[name]
        target = (attribute["config"] or {}).get("allowed_object_id") if not attribute["isList"] else None
        return {"name": name, "title": attribute["name"], "type": attribute["type"], "target": target}
    function, _, slug = name.partition("_")
    if function in ("sum", "avg", "min", "max", "count") and slug in by_slug:
        kind = AttributeType.NUMBER if function == "count" else by_slug[slug]["type"]
        words = {"sum": "Sum of", "avg": "Average of", "min": "Least", "max": "Most", "count": "Number with"}
        return {"name": name, "title": f"{words[function]} {by_slug[slug]['name']}", "type": kind, "target": None}
    titles = {"count": "Number of records", "id": "Id", "created_at": "Created", "updated_at": "Changed"}
    kinds = {"count": AttributeType.NUMBER, "created_at": AttributeType.DATE, "updated_at": AttributeType.DATE}
    return {"name": name, "title": titles.get(name, name), "type": kinds.get(name, AttributeType.TEXT), "target": None}


def _shown(
    tx: Tx, visit: Visit, report: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], part: Sequence[Mapping[str, Any]]
) -> list[list[ShownValue]]:
    slugs = {known["id"]: known["slug"] for known in visit.objects}
    labels: dict[str, dict[str, str]] = {}
    for column in columns:
        if column["target"] in slugs:
            ids = [value for result in part if isinstance(value := result.get(column["name"]), str) and canonical_uuid(value)]
            labels[column["name"]] = record_labels.labels_of(tx, column["target"], ids)
    own = slugs.get(report["object"]["id"]) if report["object"] else None

    def cell(column: Mapping[str, Any], value: Any) -> ShownValue:
        label = labels.get(column["name"], {}).get(value) if isinstance(value, str) else None
        if label is not None:
            return ShownValue(label, f"/records/{slugs[column['target']]}/{value}")
        if column["name"] == "id" and own and isinstance(value, str):
            return ShownValue(value, f"/records/{own}/{value}")
        return ShownValue(value_text(column["type"], value), is_number=is_numeric(column["type"]))

    return [[cell(column, result.get(column["name"])) for column in columns] for result in part]


def _chart(report: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Of the first figure of a report by groups."""
    if "groupBy" not in report["definition"] or len(columns) < 2:
        return None
    group, figure = columns[0], columns[1]
    if not is_numeric(figure["type"]) or group["target"]:
        return None
    is_time = group["type"] == AttributeType.DATE
    groups: list[tuple[str, Any, str]] = []
    for result in results:
        label, value = value_text(group["type"], result.get(group["name"])), result.get(figure["name"])
        if label or not is_time:
            groups.append((label or "none", value, value_text(figure["type"], value)))
    return draw(f"{figure['title']} by {group['title']}", groups, is_time=is_time)


def _is_grouped(report: Mapping[str, Any]) -> bool:
    return bool(report["definition"].get("groupBy") or report["definition"].get("measures"))


def _raw(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
