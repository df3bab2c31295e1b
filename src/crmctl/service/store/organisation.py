"""The organisation and what it starts with: an owner and the standard objects."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crmctl.service.store.attributes import create_attribute
from crmctl.service.store.members import create_member
from crmctl.service.store.objects import STANDARD, NewObject, create_object
from crmctl.service.store.standard_objects import STANDARD_OBJECTS
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx, required


def get_organisation(tx: Tx) -> dict[str, Any] | None:
    """`{id, name, createdAt}`, None before it is set up."""
    row = tx.one("SELECT id, name, created_at FROM organisation")
    return None if row is None else {"id": row[0], "name": row[1], "createdAt": to_wire(row[2])}


def hold_organisation(tx: Tx) -> None:
    """Let this transaction alone decide what the whole organisation has one of, until it ends."""
    tx.one(f"SELECT id FROM organisation{tx.dialect.for_update}")


def organisation_id(tx: Tx) -> str:
    """The id alone, for events. Raises LookupError before the set-up."""
    known_id: str = required(tx.one("SELECT id FROM organisation"))[0]
    return known_id


def initialise(tx: Tx, ids: Callable[[], str], now: float) -> dict[str, Any] | None:
    """Set up an empty database. Returns the organisation with its `owner` (a member); None when it was set up before."""
    if get_organisation(tx) is not None:
        return None
    tx.execute("INSERT INTO organisation (singleton, id, name, created_at) VALUES (1, ?, ?, ?)", (ids(), "My organization", to_micros(now)))
    made = create_member(tx, name="Owner", email="owner@localhost", role="owner", ids=ids, now=now)
    object_ids: dict[str, str] = {}
    # All objects first, so that references may point to any of them.
    for slug, definition in STANDARD_OBJECTS.items():
        new = NewObject(definition.plural_name, definition.singular_name, definition.description, slug, STANDARD)
        object_ids[slug] = create_object(tx, new, ids=ids, now=now)["id"]
    for slug, definition in STANDARD_OBJECTS.items():
        for attribute in definition.attributes:
            create_attribute(tx, object_ids[slug], attribute.new(object_ids), ids=ids, now=now)
    organisation = get_organisation(tx)
    return None if organisation is None else organisation | {"owner": made}
