"""Activities. Links and participants are checked when they are made; a record deleted later stays named, because history is not
rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Unpack

from pydantic import Field

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Body, NotFound
from crmctl.service.store import change_log
from crmctl.service.store.members import author, organisation_id
from crmctl.service.store.record_tables import existing_ids, invalid, require_description, require_title
from crmctl.service.store.tx import Rows, Stamp, Tx, all_in, insert, micros_of, to_micros, update
from crmctl.values.value_readers import Invalid, canonical_uuid, parse_instant

MOST_LINKS = 100

_Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]


class ActivityLink(Body):
    object_id: _Id
    record_id: _Id


class ActivityParticipant(Body):
    type: Literal["user", "person"]
    id: _Id


Links = Annotated[list[ActivityLink], Field(max_length=MOST_LINKS)]
Participants = Annotated[list[ActivityParticipant], Field(max_length=MOST_LINKS)]

_ACTIVITIES = Rows(
    "activity",
    "activity",
    "id, title, summary, activity_date, linked_records, participants, created_by, created_at, updated_at",
    **dict.fromkeys(("linked_records", "participants", "created_by"), jsontext.loads),
)

Pairs = Sequence[Mapping[str, str]]


def list_activities(tx: Tx, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0) -> list[Json]:
    """Return activities, newest first, only those linked to the given record and to a record of the given object."""
    linked = {"record_id": record_id, "object_id": object_id}
    filters = {column: value for column, value in linked.items() if value is not None}
    condition = " AND ".join(f"{column} = ?" for column in filters)
    where = f"WHERE number IN (SELECT activity FROM activity_link WHERE {condition}) " if filters else ""
    return _ACTIVITIES.all(tx, f"{where}ORDER BY number DESC LIMIT ? OFFSET ?", (*filters.values(), limit, offset))


def get_activity(tx: Tx, activity_id: str) -> Json:
    return _ACTIVITIES.get(tx, activity_id)


def create_activity(tx: Tx, fields: Mapping[str, Any], *, created_by: str | None, **stamp: Unpack[Stamp]) -> Json:
    """Create an activity from wire fields (specification 4.4) of the right shape; only the title is required, the date defaults to now.
    `created_by` is a member's id.

    Raises BadRequest naming the field, also for a link or participant that does not exist.
    """
    values = _checked(tx, {"title": None, "activityDate": None} | dict(fields), {}, stamp["now"])
    row: Json = {"id": stamp["ids"](), "summary": "", "linked_records": "[]", "participants": "[]"} | values
    row |= {"created_by": jsontext.dumps(author(tx, created_by))} | dict.fromkeys(("created_at", "updated_at"), to_micros(stamp["now"]))
    insert(tx, "activity", row)
    _link(tx, _number(tx, row["id"]), jsontext.loads(row["linked_records"]))
    created = get_activity(tx, row["id"])
    _announce(tx, "activity.created", created, **stamp)
    return created


def update_activity(tx: Tx, activity_id: str, fields: Mapping[str, Any], **stamp: Unpack[Stamp]) -> Json:
    """Change the given fields. An existing link may point at a deleted record. Raises NotFound, BadRequest."""
    activity = get_activity(tx, activity_id)
    columns = _checked(tx, fields, activity, stamp["now"]) | {"updated_at": to_micros(stamp["now"])}
    update(tx, "activity", columns, "id = ?", activity["id"])
    if "linkedRecords" in fields:
        number = _number(tx, activity["id"])
        tx.execute("DELETE FROM activity_link WHERE activity = ?", (number,))
        _link(tx, number, fields["linkedRecords"])
    updated = get_activity(tx, activity_id)
    _announce(tx, "activity.updated", updated, **stamp)
    return updated


def delete_activity(tx: Tx, activity_id: str, **stamp: Unpack[Stamp]) -> None:
    activity = get_activity(tx, activity_id)
    number = _number(tx, activity["id"])
    if tx.execute("DELETE FROM activity WHERE number = ?", (number,)) == 0:
        raise NotFound(f"the activity {activity_id} has just been deleted")
    tx.execute("DELETE FROM activity_link WHERE activity = ?", (number,))
    _announce(tx, "activity.deleted", activity, **stamp)


def _checked(tx: Tx, fields: Mapping[str, Any], existing: Mapping[str, Any], now: float) -> Json:
    columns: Json = {}
    if "title" in fields:
        columns["title"] = require_title(fields["title"], "title")
    if "summary" in fields:
        columns["summary"] = require_description(fields["summary"], "summary")
    if "activityDate" in fields:
        columns["activity_date"] = _instant(fields["activityDate"], now)
    if "linkedRecords" in fields:
        links = _pairs(fields["linkedRecords"], "linkedRecords", "objectId", "recordId")
        new = [link for link in links if link not in existing.get("linkedRecords", ())]
        for object_id in {link["objectId"] for link in new}:
            _require_records(tx, "linkedRecords", object_id, {link["recordId"] for link in new if link["objectId"] == object_id})
        columns["linked_records"] = jsontext.dumps(links)
    if "participants" in fields:
        participants = _pairs(fields["participants"], "participants", "type", "id")
        _check_participants(tx, [participant for participant in participants if participant not in existing.get("participants", ())])
        columns["participants"] = jsontext.dumps(participants)
    return columns


def _instant(value: Any, now: float) -> int:
    if value is None:
        return to_micros(now)
    try:
        return micros_of(parse_instant(value))
    except Invalid as problem:
        raise invalid("activityDate", problem) from None


def _pairs(items: Pairs | None, field: str, *keys: str) -> list[dict[str, str]]:
    """Return links or participants with their ids in lower case, without duplicates."""
    pairs: list[dict[str, str]] = []
    for position, item in enumerate(items or ()):
        if not all(key == "type" or canonical_uuid(text) for key, text in item.items()):
            raise invalid(f"{field}[{position}]", "must name things by their ids (UUIDs)")
        pair = {key: item[key].lower() for key in keys}
        if pair not in pairs:
            pairs.append(pair)
    return pairs


def _check_participants(tx: Tx, participants: Pairs) -> None:
    users = {participant["id"] for participant in participants if participant["type"] == "user"}
    user_ids = {user for (user,) in all_in(tx, "SELECT user_id FROM member WHERE user_id IN {}", users)}
    if users - user_ids:
        raise BadRequest(f"participants: there is no member with the user id {min(users - user_ids)}", {"field": "participants"})
    missing = {participant["id"] for participant in participants if participant["type"] == "person"}
    # A person may be a record of any object. Most are records of people, the first object.
    for (object_id,) in tx.all("SELECT id FROM crm_object ORDER BY number"):
        if missing:
            missing -= existing_ids(tx, object_id, missing) or set()
    if missing:
        raise BadRequest(f"participants: there is no record with the id {min(missing)}", {"field": "participants"})


def _require_records(tx: Tx, field: str, object_id: str, record_ids: set[str]) -> None:
    existing = existing_ids(tx, object_id, record_ids)
    if existing is None:
        raise BadRequest(f"{field}: there is no object with the id {object_id}", {"field": field})
    if record_ids - existing:
        raise BadRequest(f"{field}: there is no record with the id {min(record_ids - existing)}", {"field": field})


def _link(tx: Tx, number: int, links: Pairs) -> None:
    pairs = {(str(link["recordId"]).lower(), str(link["objectId"]).lower()) for link in links or ()}
    rows = [(record_id, object_id, number) for record_id, object_id in sorted(pairs)]
    tx.execute_many("INSERT INTO activity_link (record_id, object_id, activity) VALUES (?, ?, ?)", rows)


def _announce(tx: Tx, event_type: str, activity: Mapping[str, Any], **stamp: Unpack[Stamp]) -> None:
    payload = {
        "organizationId": organisation_id(tx),
        "activityId": activity["id"],
        "title": activity["title"],
        "linkedRecords": activity["linkedRecords"],
    }
    change_log.append_event(tx, event_type, payload, **stamp)


def _number(tx: Tx, activity_id: str) -> int:
    row = tx.one("SELECT number FROM activity WHERE id = ?", (activity_id,))
    if row is None:
        raise NotFound(f"the activity {activity_id} has just been deleted")
    return int(row[0])
