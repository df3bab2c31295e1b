"""How a record stands that a step writes: as it was before, as the step writes it, or as somebody else made it. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from crmctl.bulk.dedupe.survivorship import is_empty
from crmctl.bulk.match.reference_values import ids_only
from crmctl.bulk.merge.steps import MergeSchema, MergeStep, StepKind
from crmctl.bulk.undo.update_status import alike
from crmctl.client.record_lists import Getter
from crmctl.errors import NotFoundError
from crmctl.models.attributes import AttributeType


class StepStanding(StrEnum):
    """`changed`: by somebody since; `gone`: the record is deleted."""

    BEFORE = "before"
    AFTER = "after"
    CHANGED = "changed"
    GONE = "gone"


def record_standing(service: Getter, schema: MergeSchema, step: MergeStep) -> tuple[StepStanding, list[str]]:
    """How the record of a step stands, and the attributes that somebody changed. Raises what reading raises."""
    try:
        record = service.get_record(step.object_id, step.target)
    except NotFoundError:
        return StepStanding.GONE, []
    if step.kind is StepKind.DELETE:
        return StepStanding.BEFORE, []
    return data_standing(schema, step, record.data)


def data_standing(schema: MergeSchema, step: MergeStep, current: Mapping[str, Any]) -> tuple[StepStanding, list[str]]:
    """The same of a record's data. A step of which nothing is changed any more is as before."""
    not_back = differing(schema, step, step.before, current)
    if not not_back:
        return StepStanding.BEFORE, []
    changed = [slug for slug in differing(schema, step, step.after, current) if slug in not_back]
    return (StepStanding.CHANGED, changed) if changed else (StepStanding.AFTER, [])


def differing(schema: MergeSchema, step: MergeStep, wanted: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """The attributes in which a record differs from what is wanted, in whatever form the service shows values."""
    return [slug for slug, value in wanted.items() if not _same(schema, step, slug, value, current.get(slug))]


def _same(schema: MergeSchema, step: MergeStep, slug: str, wanted: Any, current: Any) -> bool:
    if is_empty(wanted) and is_empty(current):
        return True
    attribute = schema.attribute(slug) if step.object_id == schema.object_id else None
    if attribute is None or attribute.type == AttributeType.REFERENCE:
        return bool(ids_only(wanted) == ids_only(current)) or alike(attribute, wanted, current)
    return alike(attribute, wanted, current)
