"""Taking back what was written of groups whose losers are still there. What somebody has changed since stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.step_status import StepStanding, data_standing
from crmctl.bulk.merge.steps import MergeSchema, MergeStep, StepKind, StepState
from crmctl.errors import NotFoundError

BACKWARDS = (StepKind.CLAIM, StepKind.SURVIVOR, StepKind.FREE, StepKind.REFERENCE)
"""Survivors give unique values back before those take them again who gave them up."""


def take_back(sender: StepSender, schema: MergeSchema, groups: Iterable[int]) -> None:
    """Undo every step of these groups that was taken. Raises what ends everything."""
    done = [step for group in groups for step in sender.journal.steps(group, StepState.DONE)]
    for kind in BACKWARDS:
        steps = [back for step in done if step.kind is kind and (back := restorable(sender, schema, step)) is not None]
        sender.write(steps, back=True)
    for step in done:
        if step.kind is StepKind.ACTIVITY and (links := sender.links(step)) is not None and links == dict(step.after):
            sender.put_links_back(step, step.before)


def restorable(sender: StepSender, schema: MergeSchema, step: MergeStep) -> MergeStep | None:
    """A step with only what is still as it was written; None where nothing is, or the record is gone."""
    sender.requests += 1
    try:
        record = sender.writer.get_record(step.object_id, step.target)
    except NotFoundError:
        return None
    if data_standing(schema, step, record.data)[0] is StepStanding.BEFORE:
        sender.journal.mark_steps([step.number], StepState.UNDONE)
        return None
    _, changed = data_standing(schema, step, record.data)
    kept = {slug: value for slug, value in step.before.items() if slug not in changed}
    return replace(step, before=kept) if kept else None
