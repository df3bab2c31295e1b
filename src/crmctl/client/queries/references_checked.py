"""Ids in conditions on references that are the ids of nothing: looked up only where an answer was empty."""

from __future__ import annotations

from collections.abc import Iterator

from crmctl.client.queries.query_context import QueryContext
from crmctl.client.queries.record_filter import RecordFilter
from crmctl.client.record_lists import known_attributes
from crmctl.errors import DeniedError, NotFoundError
from crmctl.models.attributes import AttributeType
from crmctl.models.filters import Operator
from crmctl.models.ids import is_uuid

MOST_CHECKED = 5
"""So many ids at most are looked up."""


def dangling_ids(context: QueryContext, object_name: str, wanted: RecordFilter) -> Iterator[tuple[str, str]]:
    """Slug and id of every reference value that names no record."""
    conditions = [*wanted.conditions, *(condition for choice in wanted.choices for condition in choice.conditions)]
    equal = [condition for condition in conditions if condition.operator is Operator.EQUALS and is_uuid(condition.value)]
    if not equal:
        return
    attributes = {attribute.slug: attribute for attribute in known_attributes(context.directory, object_name, context.tell) or ()}
    for condition in equal[:MOST_CHECKED]:
        attribute = attributes.get(condition.slug)
        target = attribute.target_object_id if attribute is not None and attribute.type == AttributeType.REFERENCE else None
        if target is None:
            continue
        try:
            context.crm.get_record(target, condition.value)
        except NotFoundError:
            yield condition.slug, condition.value
        except DeniedError:
            return
