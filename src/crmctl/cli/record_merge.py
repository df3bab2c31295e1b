"""`crmctl records merge`: merge two records as a job that `bulk undo` reverts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Record


def merge_records(runtime: Runtime, object_name: str, names: Sequence[str], keep: str | None, assignments: Sequence[str] | None) -> None:
    """Show two records and the merged one, ask, and merge them. Raises UsageError if both names mean one record."""
    from crmctl.cli.bulk_output import WaitingContext, show, show_merges
    from crmctl.cli.fields import read_fields
    from crmctl.cli.targets import NamedRecord, find_record, read_record, record_name
    from crmctl.plan import merge_records as merging
    from crmctl.plan.import_records import ApplyRequest

    records = {record.id: record for record in (read_record(runtime, object_name, name) for name in names)}
    if len(records) < 2:
        raise UsageError(f"{names[0]} and {names[1]} are the same record", hint="name two records")
    survivor = find_record(runtime, object_name, keep).id if keep is not None else None
    if survivor is not None and survivor not in records:
        raise UsageError(f"--keep: {keep} is neither of the two records", hint=f"--keep {next(iter(records))}")
    attributes = runtime.directory.attributes(object_name)
    merge = merging.propose_merge(attributes, list(records.values()), survivor)
    kept = records[merge.survivor]
    own = read_fields(runtime, object_name, assignments, None, record=NamedRecord(kept.id, kept)) if assignments else {}
    context = WaitingContext(runtime)
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "merge.jsonl"
        merge = merging.write_one_merge(context, object_name, merge, own, plan)
        request = ApplyRequest(file=str(plan))
        [loser] = (records[record_id] for record_id in merge.losers)
        lines = _lines(runtime, object_name, (kept, loser), {slug: value.value for slug, value in merge.values.items()})
        if runtime.dry_run:
            preview = merging.preview_merges(context, request)
            show(runtime, preview.to_document(), "\n".join([*lines, "nothing was sent"]))
            return
        runtime.emitter.check_result(merging.example_merge())
        for line in lines if runtime.asks else ():
            runtime.messages.note(line)
        first, second = (record_name(runtime, record, attributes) for record in (loser, kept))
        question = f"Merge {first} into {second}, and delete {loser.id}"
        show_merges(runtime, merging.merge_records(context, request, lambda _: runtime.confirm(question)))


def _lines(runtime: Runtime, object_name: str, records: Sequence[Record], merged: Json) -> list[str]:
    """Return a table of both records and the merged one."""
    from crmctl.cli.record_lists import value_texts
    from crmctl.output.table import aligned, short_ids

    columns = value_texts(runtime, object_name, [*(record.data for record in records), merged])
    ids = short_ids([record.id for record in records], runtime.emitter.rendering())
    rows = [("", "KEPT", "MERGED INTO IT", "RESULT"), ("id", *ids, ids[0])]
    return aligned([*rows, *((slug, *(texts.get(slug, "") for texts in columns)) for slug in merged)])
