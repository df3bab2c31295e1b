"""Creating, changing and deleting reports: a form, and the definition as YAML beside it. Either becomes the same entry of a file."""

from __future__ import annotations

from typing import Any

from crmctl.service.console.conditions_form import OPERATORS, definitions_of, refuse_unfinished, rows_from, rows_of
from crmctl.service.console.deletions import Deletable
from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import LARGE_FORM, ConsolePage, Pages, Redirect, TurnedBack, Visit
from crmctl.service.console.report_results import columns_measured
from crmctl.service.definitions.document import format_document
from crmctl.service.definitions.entries import parse_entry, refuse_taken_name, report_entry, store_report
from crmctl.service.faults import BadRequest, Conflict, Fault
from crmctl.service.reports.definition import FIELDS_OF_EVERY_RECORD, ReportDefinition
from crmctl.service.roles import MemberRole
from crmctl.service.shapes import check_shape
from crmctl.service.store import attributes, objects, reports
from crmctl.service.store.tx import Tx

FUNCTIONS = {"count": "Number of records", "sum": "Sum of", "avg": "Average of", "min": "Least", "max": "Most"}
MEASURES = 3
"""Rows for measures in the form; YAML takes any number."""


def add_pages(pages: Pages) -> None:
    """All that changes reports."""
    _add_create(pages)
    _add_change(pages)
    Deletable("report", reports.get_report, reports.delete_report, _goes_too).add_pages(pages)


def _goes_too(tx: Tx, report_id: str) -> str:
    runs = reports.count_runs(tx, report_id)
    return f"{runs:,} stored run{' goes' if runs == 1 else 's go'} with it. The records it asks about stay."


def _add_create(pages: Pages) -> None:
    @pages.get("/reports/new", needs=MemberRole.ADMIN)
    def new_report(tx: Tx, visit: Visit) -> ConsolePage:
        slug = visit.query.get("object") or (visit.objects[0]["slug"] if visit.objects else "")
        return _form(tx, visit, None, {"name": "", "object": slug})

    @pages.post("/reports", form_limit=LARGE_FORM)
    def create_report(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            wanted = _wanted(visit)
            refuse_taken_name(reports.list_reports(tx), wanted.name, None)
            store_report(tx, wanted, visit.session.member_id, **visit.stamp())
        except (BadRequest, Conflict) as error:
            return _form(tx, visit, None, _typed(visit), error)
        made = next(each["id"] for each in reports.list_reports(tx) if each["name"] == wanted.name)
        return Redirect(f"/reports/{made}", "report-created")


def _add_change(pages: Pages) -> None:
    @pages.get("/reports/{reportId:uuid}/edit", needs=MemberRole.ADMIN)
    def edit_report(tx: Tx, visit: Visit) -> ConsolePage:
        entry = report_entry(tx, visit.id("reportId"))
        return _form(tx, visit, visit.id("reportId"), entry | ({"object": visit.query["object"]} if visit.query.get("object") else {}))

    @pages.post("/reports/{reportId:uuid}/edit", form_limit=LARGE_FORM)
    def change_report(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        known_id = reports.get_report(tx, visit.id("reportId"))["id"]
        try:
            refuse_if_saved_meanwhile(visit, report_entry(tx, known_id))
            wanted = _wanted(visit)
            refuse_taken_name(reports.list_reports(tx), wanted.name, known_id)
            reports.rename_report(tx, known_id, wanted.name)
            store_report(tx, wanted, **visit.stamp())
        except (BadRequest, Conflict) as error:
            # The new name must not stay when the rest does not.
            raise TurnedBack(_form(tx, visit, known_id, _typed(visit), error)) from error
        return Redirect(f"/reports/{known_id}", "saved")


def _wanted(visit: Visit) -> ReportDefinition:
    if visit.text("as") == "yaml":
        return parse_entry(ReportDefinition, visit.raw("yaml"))
    refuse_unfinished(rows_of(visit.form))
    _refuse_unchosen(visit)
    wanted = check_shape(ReportDefinition, _typed(visit))
    assert isinstance(wanted, ReportDefinition)
    return wanted


def _refuse_unchosen(visit: Visit) -> None:
    """Raises BadRequest for figures that are asked for and not chosen: the answer would be to another question."""
    if visit.text("kind") != "groups":
        return
    pairs = list(zip(visit.chosen("function"), visit.chosen("measured"), strict=False))
    for number, (function, slug) in enumerate(pairs, 1):
        if slug and not function:
            raise BadRequest(f"figure {number} names an attribute, and not what to tell of it", {"field": "measures"})
    if not visit.text("groupBy") and not any(function for function, _ in pairs):
        raise BadRequest("choose a figure, or what to group by", {"field": "measures"})


def _typed(visit: Visit) -> dict[str, Any]:
    """The definition that the form says."""
    entry: dict[str, Any] = {"name": visit.text("name"), "object": visit.text("object")}
    if visit.text("description"):
        entry["description"] = visit.text("description")
    if conditions := definitions_of(visit):
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


def _form(tx: Tx, visit: Visit, known_id: str | None, entry: dict[str, Any], error: Fault | None = None) -> ConsolePage:
    is_yaml = visit.text("as") == "yaml" or visit.query.get("as") == "yaml"
    known = objects.find_object_by_slug(tx, str(entry.get("object", "")))
    stored = report_entry(tx, known_id) if known_id else None
    found = attributes.list_attributes(tx, known["id"]) if known else []
    measures = [(each["function"], each.get("attribute", "")) for each in entry.get("measures", [])]
    values = {
        "section": "reports",
        "known_id": known_id,
        "entry": {"description": "", "columns": [], "groupBy": "", "sort": None, "limit": "", **entry},
        "is_yaml": is_yaml,
        "yaml": visit.raw("yaml") if visit.text("as") == "yaml" else format_document(entry),
        "attributes": found,
        "conditions": rows_from(entry.get("filters", [])),
        "operators": OPERATORS,
        "functions": FUNCTIONS,
        "measures": [*measures, *[("", "")] * (MEASURES - len(measures))],
        "is_grouped": bool(entry.get("groupBy") or entry.get("measures")),
        "sortable": [*FIELDS_OF_EVERY_RECORD[1:], *(each["slug"] for each in found), *columns_measured(entry.get("measures", []))],
    }
    return ConsolePage("report_form.html", values | form_values(stored, error), form_status(error))
