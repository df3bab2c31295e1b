"""`crmctl activities`: notes, meetings and calls linked to records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import show_pages, window
from crmctl.cli.options import AllOption, DataOption, LimitOption, OffsetOption
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.shapes import Page
    from crmctl.models.activities import Activity

app = CommandApp("List and manage activities: notes, meetings and calls linked to records.")

NEWEST = "$(crmctl activities list --limit 1 -o ids)"
PERSON = "$(crmctl records list people --limit 1 -o ids)"

ActivityArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the activity.")]
TitleOption = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="What it is about, in a few words.")]
SummaryOption = Annotated[str | None, typer.Option("--summary", metavar="TEXT", help="What was said or done.")]
DateHelp = (
    "When it took place: 2026-05-01, '2026-05-01 14:00', 2026-05-01T14:00+02:00, today, 'yesterday 15:30', -2h. "
    "Without an offset it is the local time zone; UTC is sent."
)
ParticipantOption = Annotated[
    list[str] | None,
    typer.Option("--participant", metavar="user:EMAIL|user:ID|person:ID", help="A member or a person who took part; may be repeated."),
]


@app.command(
    "list",
    examples=[
        "crmctl activities list",
        "crmctl activities list --object people --limit 10",
        f"crmctl activities list --record {PERSON} --all -o csv",
    ],
)
def list_activities(
    ctx: typer.Context,
    record: Annotated[str | None, typer.Option("--record", metavar="ID", help="Only those linked to this record.")] = None,
    object_name: Annotated[str | None, typer.Option("--object", metavar="OBJECT", help="Only those linked to this object.")] = None,
    limit: LimitOption = None,
    every: AllOption = False,
    offset: OffsetOption = 0,
) -> None:
    """List activities.

    Shows 50 unless --limit or --all asks for more.
    """
    from crmctl.cli.targets import on_object
    from crmctl.output.views import ACTIVITIES

    runtime: Runtime = ctx.obj

    def fetch(limit: int, offset: int) -> Page[Activity]:
        def ask(target: str | None) -> Page[Activity]:
            return runtime.crm.list_activities(record_id=record, object_id=target, limit=limit, offset=offset)

        return ask(None) if object_name is None else on_object(runtime, object_name, ask)

    show_pages(runtime, fetch, window(limit, every, offset), lambda _: ACTIVITIES)


@app.command("get", examples=[f"crmctl activities get {NEWEST}", f"crmctl activities get {NEWEST} -q linkedRecords"])
def get_activity(ctx: typer.Context, activity_id: ActivityArgument) -> None:
    """Show one activity."""
    runtime: Runtime = ctx.obj
    _emit(runtime, runtime.crm.get_activity(activity_id))


@app.command(
    "create",
    writes=True,
    examples=[
        f"crmctl activities create --title 'First call' --date 'yesterday 15:30' --link people:{PERSON}",
        f"crmctl activities create --title Demo --date 2026-05-01T14:00+02:00 --participant person:{PERSON} --dry-run",
        """crmctl activities create --data '{"title": "Note", "summary": "Likes tea"}'""",
    ],
)
def create_activity(
    ctx: typer.Context,
    title: TitleOption = None,
    summary: SummaryOption = None,
    date: Annotated[str | None, typer.Option("--date", metavar="DATE", help=f"{DateHelp} Now unless given.")] = None,
    links: Annotated[list[str] | None, typer.Option("--link", metavar="OBJECT:ID", help="A record it is about; may be repeated.")] = None,
    participants: ParticipantOption = None,
    data: DataOption = None,
) -> None:
    """Create an activity.

    Options win over --data. The date is now unless one is given.
    """
    from crmctl.cli.activity_fields import parse_links, read_fields, with_links
    from crmctl.models.moments import timestamp

    runtime: Runtime = ctx.obj
    pairs = parse_links(links)
    fields = read_fields(runtime, data, title=title, summary=summary, date=date, participants=participants)
    _check(runtime, fields, pairs)
    fields.setdefault("activityDate", timestamp("now", runtime.clock.now()))
    _emit(runtime, with_links(runtime, fields, pairs, runtime.crm.create_activity))


@app.command(
    "update",
    writes=True,
    examples=[
        f"crmctl activities update {NEWEST} --summary 'Asked for an offer'",
        f"crmctl activities update {NEWEST} --date 'today 9:00' --link people:{PERSON} --dry-run",
        f"""crmctl activities update {NEWEST} --data '{{"participants": []}}' --dry-run""",
    ],
)
def update_activity(
    ctx: typer.Context,
    activity_id: ActivityArgument,
    title: TitleOption = None,
    summary: SummaryOption = None,
    date: Annotated[str | None, typer.Option("--date", metavar="DATE", help=DateHelp)] = None,
    links: Annotated[
        list[str] | None, typer.Option("--link", metavar="OBJECT:ID", help="The records it is about, instead of the present ones.")
    ] = None,
    participants: ParticipantOption = None,
    data: DataOption = None,
) -> None:
    """Change an activity; what is not given stays as it is.

    --link and --participant replace the whole list; to empty one: --data '{"linkedRecords": []}'.
    """
    from crmctl.cli.activity_fields import parse_links, read_fields, with_links

    runtime: Runtime = ctx.obj
    pairs = parse_links(links)
    fields = read_fields(runtime, data, title=title, summary=summary, date=date, participants=participants)
    _check(runtime, fields, pairs)
    _emit(runtime, with_links(runtime, fields, pairs, lambda body: runtime.crm.update_activity(activity_id, body)))


@app.command("delete", writes=True, examples=[f"crmctl activities delete {NEWEST} --dry-run"])
def delete_activity(ctx: typer.Context, activity_id: ActivityArgument) -> None:
    """Delete an activity; asks first."""
    runtime: Runtime = ctx.obj
    runtime.confirm(f"Delete activity {activity_id}")
    runtime.crm.delete_activity(activity_id)
    runtime.done({"deleted": 1}, f"deleted activity {activity_id}")


def _check(runtime: Runtime, fields: dict[str, Any], links: list[tuple[str, str]]) -> None:
    """Refuse an empty write and unknown --fields before anything is sent."""
    from crmctl.output.views import ACTIVITIES

    if not fields and not links:
        raise UsageError("nothing to write", hint="--title, --summary, --date, --link, --participant or --data say what")
    runtime.emitter.check_fields(ACTIVITIES)


def _emit(runtime: Runtime, activity: Activity) -> None:
    from crmctl.output.views import ACTIVITIES

    runtime.emitter.emit_item(activity.wire, ACTIVITIES)
