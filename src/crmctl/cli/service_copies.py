"""`crmctl service restore`: the records of an object as they were at a moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.commands.serve import DatabaseOption, DataOption
from crmctl.cli.service_access import opened, write
from crmctl.errors import PartialError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

SHOWN = 20


def restore(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="OBJECT", help="Slug of the object.")],
    as_of: Annotated[str | None, typer.Option("--as-of", metavar="MOMENT", help="The moment, such as 'yesterday 15:30'.")] = None,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Take the records of an object back to what they held at a moment, whoever changed them since.

    What was created since is deleted, what was deleted is created again under its id, and what was changed gets its values back: by
    ordinary changes, which webhooks and workflows are told of and which the history shows; so this can be taken back too. The service may
    run meanwhile. --dry-run says what would happen.
    """
    runtime: Runtime = ctx.obj
    if as_of is None:
        raise UsageError("say which moment the records go back to", hint="--as-of 'yesterday 15:30'")
    restore_records(runtime, what, as_of, data, database_url)


def restore_records(runtime: Runtime, slug: str, as_of: str, data: Path | None, database_url: str | None) -> None:
    """Raises NotFoundError, RejectedError, PartialError when some records could not be restored."""
    from crmctl.cli.date_text import timestamp
    from crmctl.service.store.timestamps import micros_of, to_micros, to_wire
    from crmctl.service.values.dates import parse_instant

    moment = micros_of(parse_instant(timestamp(as_of, runtime.clock.now()))) / 1_000_000
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.data import new_id
        from crmctl.service.faults import NotFound
        from crmctl.service.store import objects, record_restore

        found = engine.read(lambda tx: objects.find_object_by_slug(tx, slug))
        if found is None:
            raise NotFound(f"there is no object with the slug {slug!r}")
        candidates = engine.read(lambda tx: record_restore.find_candidates(tx, found["id"], moment, now=runtime.clock.now()))
        _confirm(runtime, slug, candidates.count, to_wire(to_micros(moment)))
        restored = record_restore.restore(
            candidates, lambda work: write(runtime, engine, work), found["id"], lambda: {"ids": new_id, "now": runtime.clock.now()}
        )
    counts = {name: restored.counts[name] for name in ("created", "updated", "deleted", "unchanged")}
    summary: dict[str, Any] = {"dryRun": True} if runtime.dry_run else {}
    summary |= {"object": slug, "asOf": to_wire(to_micros(moment)), **counts, "failed": len(restored.failed)}
    summary |= {"leftOut": sorted(restored.left_out)} if restored.left_out else {}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing has changed since"
    runtime.emitter.emit_result(summary, text=text)
    if restored.left_out:
        runtime.messages.warn(f"left out, because the object has no such attributes any more: {', '.join(sorted(restored.left_out))}")
    if restored.failed:
        first = dict(list(restored.failed.items())[:SHOWN])
        raise PartialError(f"{len(restored.failed):,} records stay as they are", details={"failed": first})


def _confirm(runtime: Runtime, slug: str, count: int, moment: str) -> None:
    if count:
        runtime.confirm(f"Take {count:,} records of {slug} back to {moment}")
