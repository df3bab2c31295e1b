"""The pages of one record: its facts, links, timeline and history; create, change and delete it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.service.console import activities as activity_pages
from crmctl.service.console.cells import cells_of, labels_in, reference_target, value_text
from crmctl.service.console.noun_pages import actor_name
from crmctl.service.console.record_form import FormField, changes, fields_for, fingerprints, merged, submitted
from crmctl.service.console.record_list import label_of, labelled, list_path, object_of
from crmctl.service.console.visits import ConsolePage, Redirect, Visit, moment, shortened
from crmctl.service.faults import BadRequest, Conflict, Fault, PreconditionFailed
from crmctl.service.store import activities, objects, records
from crmctl.service.store.condition_sql import Where
from crmctl.service.store.record_history import History, read_history
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Tx, to_micros, to_wire
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.values.value_readers import canonical_uuid

MOST_REFERRING, MOST_ACTIVITIES, MOST_CHANGES = 5, 10, 5
PER_PAGE = 25


def new_record(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object = object_of(tx, visit)
    # The page of a record leads here with a reference to that record.
    references = [attribute["slug"] for attribute in crm_object["attributes"] if reference_target(attribute)]
    data = {slug: text for slug, text in visit.query.items() if slug in references and canonical_uuid(text)}
    return _form(tx, visit, crm_object, None, stored_form(tx, visit, crm_object["attributes"], data))


def create_record(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
    crm_object = object_of(tx, visit)
    # The form sends the id of the new record, so that sending it twice creates one record.
    record_id = visit.form_id()
    if records.count_records(tx, crm_object["id"], [Condition("id", Operator.EQUALS, record_id)]):
        return Redirect(f"/records/{crm_object['slug']}/{record_id}", "record-created-before")
    data, fields, problem = read_form(tx, submitted(stored_form(tx, visit, crm_object["attributes"], {}), visit.form))
    if problem is None:
        first = iter([record_id])
        try:
            ids = visit.context.ids
            records.create_record(tx, crm_object["id"], data, ids=lambda: next(first, None) or ids(), now=visit.now())
        except (BadRequest, Conflict) as error:
            fields, problem = _blamed(tx, crm_object, fields, data, error)
    if problem is not None:
        return _form(tx, visit, crm_object, None, fields, problem)
    return Redirect(f"/records/{crm_object['slug']}/{record_id}", "record-created")


def show_history(tx: Tx, visit: Visit) -> ConsolePage:
    (crm_object, record), page = _opened(tx, visit), visit.number("page", 1)
    history = read_history(tx, crm_object["id"], record["id"], PER_PAGE, (page - 1) * PER_PAGE)
    values = {
        "object": crm_object,
        "record": record,
        "label": label_of(tx, crm_object, record),
        "changes": _changes(tx, crm_object, history),
        "total": history.total,
        "since": history.since,
        "page": page,
        "has_older": history.total > page * PER_PAGE,
    }
    return ConsolePage("history.html", values)


def add_activity(tx: Tx, visit: Visit) -> Redirect:
    crm_object, record = _opened(tx, visit)
    activity_pages.add(tx, visit, [{"objectId": crm_object["id"], "recordId": record["id"]}])
    return Redirect(f"/records/{crm_object['slug']}/{record['id']}", "activity-added")


def edit_record(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object, record = _opened(tx, visit)
    shown = [attribute for attribute in crm_object["attributes"] if visit.query.get("only") in (None, attribute["slug"])]
    return _form(tx, visit, crm_object, record, stored_form(tx, visit, shown, record["data"]))


def change_record(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
    crm_object, record = _opened(tx, visit)
    fields = submitted(stored_form(tx, visit, crm_object["attributes"], record["data"]), visit.form)
    version, only = visit.text("version"), visit.text("only")
    if only and visit.raw("base") == fingerprints([field for field in fields if field.slug == only]):
        version = records.version_of(record)  # someone else changed other attributes, which this form does not write
    if version != records.version_of(record):
        return _conflict(tx, visit)
    data, fields, problem = read_form(tx, fields)
    if problem is None and data:
        try:
            records.update_record(tx, crm_object["id"], record["id"], data, [version], **visit.stamp())
        except PreconditionFailed:
            return _conflict(tx, visit)
        except (BadRequest, Conflict) as error:
            fields, problem = _blamed(tx, crm_object, fields, data, error)
    if problem is not None:
        return _form(tx, visit, crm_object, record, fields, problem)
    path = list_path(crm_object, visit.raw("list")) if only else f"/records/{crm_object['slug']}/{record['id']}"
    return Redirect(path, "saved" if data else "nothing-changed")


def delete_record(tx: Tx, visit: Visit) -> Redirect:
    (crm_object, record), stamp = _opened(tx, visit), visit.stamp()
    try:
        records.delete_record(tx, crm_object["id"], record["id"], [visit.text("version") or records.ANY_VERSION], **stamp)
    except PreconditionFailed as error:
        raise Conflict(f"{saver_of(tx, crm_object, record)} saved this record meanwhile") from error
    return Redirect(f"/records/{crm_object['slug']}/changed?at={to_micros(stamp['now'])}", "record-deleted")


def _conflict(tx: Tx, visit: Visit) -> ConsolePage:
    """Return the form with the visitor's changes merged into the values someone else saved."""
    crm_object, record = _opened(tx, visit)
    fields = merged(submitted(stored_form(tx, visit, crm_object["attributes"], record["data"]), visit.form), visit.raw("base"))
    message = f"{saver_of(tx, crm_object, record)} saved this record; your changes are kept below, check them and save again"
    return _form(tx, visit, crm_object, record, fields, message, HTTPStatus.CONFLICT)


def saver_of(tx: Tx, crm_object: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    change = next(iter(read_history(tx, str(crm_object["id"]), str(record["id"]), 1).changes), None)
    return f"{actor_name(change['by'])} (on {moment(change['at'])})" if change else "someone else"


def _opened(tx: Tx, visit: Visit) -> tuple[Json, Json]:
    """Return the object and the record in the path. Raises NotFound."""
    crm_object = object_of(tx, visit)
    return crm_object, records.get_record(tx, crm_object["id"], visit.id("recordId"))


def stored_form(tx: Tx, visit: Visit, attributes: Sequence[Json], data: Json) -> list[FormField]:
    """Return the form of these attributes as stored; new amounts have the default currency."""
    return fields_for([attribute | {"currency": visit.currency} for attribute in attributes], data, labels_in(tx, attributes, [data]))


def ask_to_delete(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object, record = _opened(tx, visit)
    values = {
        "object": crm_object,
        "record": record,
        "label": label_of(tx, crm_object, record),
        "version": records.version_of(record),
        "referring": referring_to(tx, visit, crm_object, [record["id"]]),
        "until": to_wire(to_micros(visit.now() + visit.context.settings.kept.history)),
    }
    return ConsolePage("delete_record.html", values)


def read_form(tx: Tx, fields: list[FormField]) -> tuple[Json, list[FormField], str | None]:
    """Return the data to write, the form with its problems, and an error message or None."""
    written, problems = changes(fields)
    for place, field in enumerate(fields):
        slug, target = field.slug, reference_target(field.attribute)
        if target is None or not isinstance(written.get(slug), str) or canonical_uuid(written[slug]):
            continue
        exact = records.called(tx, target, written[slug])
        if len(exact) == 1:
            written[slug] = exact[0]["id"]
            continue
        problems[slug] = "fits several records: choose one" if exact else records.not_called(tx, target)
        pairs = tuple((choice["id"], f"{choice['label']} ({choice['about']})") for choice in exact)
        text, pick = field.inputs
        fields[place] = replace(field, inputs=(text, replace(pick, choices=pairs)))
    if not problems:
        return written, fields, None
    return {}, [replace(field, problem=problems.get(field.slug, "")) for field in fields], _not_saved(len(problems))


def _blamed(tx: Tx, crm_object: Json, fields: list[FormField], data: Json, error: Fault) -> tuple[list[FormField], str]:
    """Return the form with the store's complaint at each attribute, and a link to the record that has a unique value already."""
    details = error.details or {}
    problems = dict(details.get("fields", {})) or ({str(details["slug"]): error.message} if "slug" in details else {})
    others: dict[str, tuple[str, str]] = {}
    for slug in problems if isinstance(error, Conflict) else ():
        if isinstance(data.get(slug), str):
            rows, _ = records.list_records(tx, crm_object["id"], [Condition(slug, Operator.EQUALS, data[slug])], Paging(limit=1))
            if rows:
                others[slug] = (f"/records/{crm_object['slug']}/{rows[0]['id']}", label_of(tx, crm_object, rows[0]))
    marked = [replace(field, problem=problems.get(field.slug, ""), other=others.get(field.slug)) for field in fields]
    return marked, _not_saved(len(problems)) if problems else error.message


def _not_saved(count: int) -> str:
    return f"nothing was saved: correct {count} attribute{'' if count == 1 else 's'}"


def _form(
    tx: Tx,
    visit: Visit,
    crm_object: Mapping[str, Any],
    record: Json | None,
    fields: Sequence[FormField],
    error: str | None = None,
    status: int = 0,
) -> ConsolePage:
    values = {
        "object": crm_object,
        "record": record,
        "label": label_of(tx, crm_object, record) if record else "",
        "fields": fields,
        "base_line": fingerprints(fields),
        "version": records.version_of(record) if record else "",
        "form_id": visit.form_id(),
        "error": error,
        "only": visit.query.get("only", "") if len(fields) == 1 else "",
        "list": visit.query.get("list", ""),
    }
    return ConsolePage("record_form.html", values, status)


def show_record(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object, record = _opened(tx, visit)
    own_attributes = objects.list_attributes(tx, crm_object["id"], include_inactive=True)
    shown = [attribute for attribute in own_attributes if attribute["isActive"] or attribute["slug"] in record["data"]]
    [cells] = cells_of(tx, shown, [record], visit)
    history = read_history(tx, crm_object["id"], record["id"], MOST_CHANGES)
    shown_activities = activities.list_activities(tx, record["id"], crm_object["id"], MOST_ACTIVITIES + 1)
    events: list[tuple[str, Json | None, Json | None]] = [
        (activity["activityDate"], activity, None) for activity in shown_activities[:MOST_ACTIVITIES]
    ]
    events += [(change["at"], None, change) for change in _changes(tx, crm_object, history)]
    values = {
        "object": crm_object,
        "record": record,
        "label": label_of(tx, crm_object, record),
        "facts": list(zip(shown, cells, strict=True)),
        "referring": referring_to(tx, visit, crm_object, [record["id"]]),
        "events": sorted(events, key=lambda event: event[0], reverse=True),
        "more_activities": len(shown_activities) > MOST_ACTIVITIES,
        "most_activities": MOST_ACTIVITIES,
        "more_changes": history.total - len(history.changes),
        "fields": {name: visit.text(name) for name in ("title", "summary", "date")},
    }
    return ConsolePage("record.html", values)


def _changes(tx: Tx, crm_object: Mapping[str, Any], history: History) -> list[Json]:
    """Return changes with their actor, time, and the old and new text of each attribute."""
    kinds = {attribute["slug"]: attribute for attribute in objects.list_attributes(tx, str(crm_object["id"]), include_inactive=True)}
    shown = [{part["attributeSlug"]: part[value] for part in change["changes"]} for change in history.changes for value in ("old", "new")]
    labels = labels_in(tx, list(kinds.values()), shown)

    def text(slug: str, value: Any) -> str:
        return shortened(labels.get(str(value)) or value_text(kinds[slug]["type"] if slug in kinds else "", value))

    return [
        {
            "at": change["at"],
            "what": change["type"].partition(".")[2],
            "by": actor_name(change["by"]),
            "values": [
                (kinds[slug]["name"] if slug in kinds else slug, text(slug, part["old"]), text(slug, part["new"]))
                for part in change["changes"]
                for slug in [part["attributeSlug"]]
            ],
        }
        for change in history.changes
    ]


def referring_to(tx: Tx, visit: Visit, crm_object: Mapping[str, Any], ids: Sequence[str]) -> list[Json]:
    """Return, for each attribute that may link to these records, how many others do and some of them.

    A single record that links to itself counts too. Lists of references are not counted.
    """
    slugs = {listed_object["id"]: listed_object for listed_object in visit.objects}
    result = []
    for attribute in objects.referring_attributes(tx, str(crm_object["id"])):
        owner = slugs.get(attribute["objectId"])
        if owner is None or not attribute["isActive"]:
            continue
        name = str(attribute["name"]).lower()
        title = f"{owner['pluralName']} {'at' if name == 'company' else 'with'} this {name}"
        entry: Json = {"title": title, "object": owner, "attribute": attribute, "total": None, "records": []}
        if not attribute["isList"]:
            wheres = [records.is_any_of(tx, owner["id"], attribute["slug"], ids)]
            if len(ids) > 1 and owner["id"] == crm_object["id"]:
                wheres.append(Where(f"id NOT IN ({', '.join('?' * len(ids))})", tuple(ids)))
            rows, total = records.list_records(tx, owner["id"], [], Paging(limit=MOST_REFERRING), wheres)
            entry["total"] = total
            entry["records"] = labelled(tx, owner, rows)
        result.append(entry)
    return result
