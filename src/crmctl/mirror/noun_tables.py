"""The tables of the mirror that are not an object's records: objects, attributes, members, activities with their links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crmctl.mirror.columns import clean_text, table_columns, wire_text
from crmctl.mirror.file import FIXED_TABLES, MirrorFile, SyncState
from crmctl.models import jsontext
from crmctl.models.activities import Activity
from crmctl.models.attributes import Attribute
from crmctl.models.members import Member
from crmctl.models.objects import Object


def write_objects(file: MirrorFile, objects: Iterable[Object], state: SyncState) -> None:
    for each in objects:
        row = (
            each.id, each.slug, state.table_name, each.type, each.plural_name, each.singular_name, each.description, each.is_active,
            each.created_at, each.updated_at, wire_text(each.wire),
        )  # fmt: skip
        _insert(file, "objects", row)


def write_attributes(file: MirrorFile, of: Object, attributes: Sequence[Attribute], state: SyncState) -> None:
    """`column_name` is empty where an attribute has no column of its own."""
    file.db.execute("DELETE FROM attributes WHERE object_id = ?", (of.id,))
    kept = [each for each in attributes if each.slug not in state.excluded]
    columns = {column.attribute.id for column in table_columns(kept, state.loose) if column.part is None}
    for each in attributes:
        row = (
            each.id, of.id, each.slug, each.name, each.type, each.slug if each.id in columns else None, each.is_required, each.is_unique,
            each.is_list, each.is_active, each.display_order, None if each.config is None else jsontext.dumps(each.config),
            each.created_at, each.updated_at, wire_text(each.wire),
        )  # fmt: skip
        _insert(file, "attributes", row)


def write_members(file: MirrorFile, members: Iterable[Member]) -> None:
    """These are all members now."""
    file.db.execute("DELETE FROM members")
    for each in members:
        user = each.user
        person = (user.id, user.name, user.email, user.image) if user is not None else (None,) * 4
        _insert(file, "members", (each.id, each.role, *person, each.created_at, wire_text(each.wire)))


def write_activities(file: MirrorFile, activities: Iterable[Activity]) -> None:
    """Take activities in, with the records they are linked to."""
    for each in activities:
        by = each.created_by
        person = (by.id, by.name, by.email) if by is not None else (None,) * 3
        participants = each.wire.get("participants")
        row = (
            each.id, each.title, each.summary, each.activity_date, None if participants is None else jsontext.dumps(participants),
            *person, each.created_at, each.updated_at, wire_text(each.wire),
        )  # fmt: skip
        _insert(file, "activities", row)
        file.db.execute("DELETE FROM activity_links WHERE activity_id = ?", (each.id,))
        links = {(link.object_id, link.record_id) for link in each.linked_records or ()}
        file.db.executemany("INSERT INTO activity_links VALUES (?, ?, ?)", ((each.id, *link) for link in sorted(links, key=str)))


def activity_texts(wire: Mapping[str, Any]) -> dict[str, Any]:
    """What of an activity is looked for: what somebody wrote, and who took part."""
    return {name: wire[name] for name in ("title", "summary", "participants", "activityDate") if wire.get(name) is not None}


def _insert(file: MirrorFile, table: str, row: Sequence[Any]) -> None:
    assert len(row) == FIXED_TABLES[table].replace("(object_id, record_id)", "").count(",") + 1
    values = [clean_text(value) if isinstance(value, str) else value for value in row]
    file.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", values)  # noqa: S608 - a name of our own
