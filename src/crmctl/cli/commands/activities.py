"""`crmctl activities`: notes, meetings and calls linked to records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from crmctl.cli.list_window import show_pages, window
from crmctl.cli.options import DataOption, argument, option, takes
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import on_object, taken_for_id
from crmctl.cli.verbs import NOUNS, noun_app
from crmctl.errors import UsageError
from crmctl.models.ids import is_uuid

if TYPE_CHECKING:
    from crmctl.client.answers import Page
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Activity

app = noun_app("activities")
VIEW = NOUNS["activities"].view

NEWEST = "$(crmctl activities list --limit 1 -o ids)"
PERSON = "$(crmctl records list people --limit 1 -o ids)"

TitleOption = Annotated[str | None, option("--title", "TEXT", "A short title.")]
SummaryOption = Annotated[str | None, option("--summary", "TEXT", "A longer text.")]
DateHelp = (
    "Date: 2026-05-01, '2026-05-01 14:00', 2026-05-01T14:00+02:00, today, 'yesterday 15:30' or -2h, in local time unless it has an offset."
)
ParticipantOption = Annotated[
    list[str] | None, option("--participant", "user:EMAIL|person:ID", "A member, or a person: person:email=ada@acme.com; repeatable.")
]


@app.command(
    "list",
    examples=[
        "crmctl activities list",
        "crmctl activities list --object people --limit 10",
        f"crmctl activities list --record {PERSON} --all -o csv",
    ],
)
@takes("limit every offset")
def list_activities(
    runtime: Runtime,
    record: Annotated[str | None, option("--record", "ID", "Only activities linked to this record.")] = None,
    object_name: Annotated[str | None, option("--object", "OBJECT", "Only activities linked to this object.")] = None,
    **part: Any,
) -> None:
    """List activities.

    Shows 50 unless --limit or --all asks for more.
    """
    record = record and runtime.shown_ids.whole(record)
    if record and not is_uuid(record):  # the service would find nothing
        raise UsageError(f"--record {record!r} is no id", hint="crmctl records get OBJECT ATTR=VALUE -o ids shows one")

    def fetch(limit: int, offset: int) -> Page[Activity]:
        def ask(target: str | None) -> Page[Activity]:
            return runtime.crm.list_activities(record_id=record, object_id=target, limit=limit, offset=offset)

        return ask(None) if object_name is None else on_object(runtime, object_name, ask)

    show_pages(runtime, fetch, window(**part), lambda _: VIEW)


@app.command(
    "create",
    writes=True,
    examples=[
        f"crmctl activities create --title 'First call' --date 'yesterday 15:30' --link people:{PERSON}",
        f"crmctl activities create --title Demo --date 2026-05-01T14:00+02:00 --participant person:{PERSON} --dry-run",
        "crmctl activities create --title 'Second call' --link people:email=grace@acme.com --dry-run",
        """crmctl activities create --data '{"title": "Note", "summary": "Likes tea"}'""",
    ],
)
def create_activity(
    runtime: Runtime,
    title: TitleOption = None,
    summary: SummaryOption = None,
    date: Annotated[str | None, option("--date", "DATE", f"{DateHelp} By default now.")] = None,
    links: Annotated[
        list[str] | None, option("--link", "OBJECT:ID", "A linked record: its id, or companies:domain=acme.com; repeatable.")
    ] = None,
    participants: ParticipantOption = None,
    data: DataOption = None,
) -> None:
    """Create an activity.

    Options override --data. The date is now by default.
    """
    from crmctl.cli.fields import with_links
    from crmctl.values.moments import timestamp

    fields, pairs = _fields(runtime, links, title=title, summary=summary, date=date, participants=participants, data=data)
    fields.setdefault("activityDate", timestamp("now", runtime.clock.now()))
    runtime.emitter.emit_item(with_links(runtime, fields, pairs, runtime.crm.create_activity), VIEW)


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
    runtime: Runtime,
    activity_id: Annotated[str, argument("ID", "Id of the activity.")],
    title: TitleOption = None,
    summary: SummaryOption = None,
    date: Annotated[str | None, option("--date", "DATE", DateHelp)] = None,
    links: Annotated[list[str] | None, option("--link", "OBJECT:ID", "Linked records, replacing the present ones.")] = None,
    participants: ParticipantOption = None,
    data: DataOption = None,
) -> None:
    """Change some fields of an activity.

    --link and --participant replace the whole list; to clear it: --data '{"linkedRecords": []}'.
    """
    from crmctl.cli.fields import with_links

    fields, pairs = _fields(runtime, links, title=title, summary=summary, date=date, participants=participants, data=data)
    activity_id = runtime.shown_ids.whole(activity_id)
    with taken_for_id(activity_id, f"there is no activity {activity_id!r}", "crmctl activities list shows the ids"):
        activity = with_links(runtime, fields, pairs, lambda body: runtime.crm.update_activity(activity_id, body))
    runtime.emitter.emit_item(activity, VIEW)


def _fields(runtime: Runtime, links: list[str] | None, **given: Any) -> tuple[Json, list[tuple[str, str]]]:
    """Return the fields and links of the options. Raises UsageError for an empty write and for unknown --fields."""
    from crmctl.cli.fields import parse_links, read_activity_fields

    pairs = parse_links(runtime, links)
    fields = read_activity_fields(runtime, **given)
    if not fields and not pairs:
        raise UsageError("nothing to write", hint="--title, --summary, --date, --link, --participant or --data say what")
    runtime.emitter.check_fields(VIEW)
    return fields, pairs
