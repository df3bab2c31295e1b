"""The attributes records were read with, by their ids: some changes of them change records without a sign in the records' times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crmctl.models.attributes import Attribute

Fingerprint = Mapping[str, Sequence[Any]]
"""By the attribute's id: slug, type, whether it is a list, whether it is active."""


def fingerprint_of(attributes: Iterable[Attribute]) -> dict[str, list[Any]]:
    """What of the attributes decides what records hold."""
    return {each.id: [each.slug, each.type, bool(each.is_list), each.is_active is not False] for each in attributes}


def why_anew(before: Fingerprint, now: Fingerprint) -> str | None:
    """Why records may have changed unseen: an attribute went, was made anew under its slug, or became another; None where none did.

    An attribute that came changes no record before somebody writes to it.
    """
    slugs = {facts[0]: attribute_id for attribute_id, facts in now.items()}
    for attribute_id, facts in before.items():
        slug = facts[0]
        if attribute_id not in now:
            return f"the attribute {slug} was made anew" if slug in slugs else f"the attribute {slug} was deleted"
        if list(now[attribute_id]) != list(facts):
            return f"the attribute {slug} has changed"
    return None


def needs_columns(before: Fingerprint, now: Fingerprint) -> bool:
    """Whether the table's columns are others now."""
    return {key: list(facts) for key, facts in before.items()} != {key: list(facts) for key, facts in now.items()}
