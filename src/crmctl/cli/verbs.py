"""The verbs that nouns share: list, get, runs and delete. A noun is one row of NOUNS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from crmctl.cli.app import CommandApp
from crmctl.cli.list_window import show_pages, window
from crmctl.cli.options import ObjectArgument, argument, takes
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import on_attribute, on_object, read_before_question, records_at_stake, taken_for_id
from crmctl.frozen import frozen
from crmctl.models.ids import is_uuid

if TYPE_CHECKING:
    from crmctl.models.resources import Item
    from crmctl.output.views import View

T = TypeVar("T")


@frozen
class Noun:
    """A resource of the service: its name and that of a single one, its columns and fields, and the verbs that work the same everywhere.

    An item is named by id; with `is_named` also by its exact name, with `in_object` by an object and its slug. `lists` are nouns that an
    item may hold.
    """

    name: str
    one: str
    help: str
    columns: str
    fields: str
    verbs: Sequence[str] = ("list", "get")
    is_named: bool = False
    in_object: bool = False
    lists: Sequence[str] = ()
    example: str = ""
    query: str = "id"
    run_columns: str = ""
    run_fields: str = ""

    @property
    def view(self) -> View:
        from crmctl.output.views import table_view

        view = table_view(self.name, self.columns, self.fields, **{name: NOUNS[name].view for name in self.lists})
        return replace(view, has_short_ids=True)

    @property
    def runs_view(self) -> View:
        from crmctl.output.views import table_view

        return replace(table_view("runs", self.run_columns, self.run_fields or self.run_columns), has_short_ids=True)


NOUNS = {
    noun.name: noun
    for noun in (
        Noun(
            "objects",
            "object",
            "List and manage objects such as people or deals.",
            "slug singularName pluralName type isActive id",
            "id type pluralName singularName description slug isActive createdAt updatedAt",
            verbs=("delete",),
            lists=("attributes",),
            example="projects",
        ),
        Noun(
            "attributes",
            "attribute",
            "List and manage the attributes, the fields, of an object.",
            "slug name type isRequired isUnique isList isActive",
            "id objectId name slug type isRequired isUnique isList isActive displayOrder config createdAt updatedAt",
            verbs=("get", "delete"),
            in_object=True,
            example="deals stage",
            query="config.options",
        ),
        Noun(
            "activities",
            "activity",
            "List and manage activities: notes, meetings and calls linked to records.",
            "id title activityDate createdBy.name",
            "id title summary activityDate linkedRecords participants createdBy createdAt updatedAt",
            verbs=("get", "delete"),
            example="$(crmctl activities list --limit 1 -o ids)",
            query="linkedRecords",
        ),
        Noun(
            "members",
            "member",
            "List the members of the organization, change their roles, remove them.",
            "user.name user.email role user.id",
            "id role createdAt user",
            verbs=("list",),
            query="user.email",
        ),
        Noun(
            "reports",
            "report",
            "Run reports and see their results.",
            "id name lastRunAt creator.name",
            "id name description lastRunAt createdAt creator",
            verbs=("list", "get", "runs"),
            is_named=True,
            example="'Deals by stage'",
            query="name",
            run_columns="id status resultCount startedAt completedAt",
        ),
        Noun(
            "workflows",
            "workflow",
            "Run workflows by hand and see their runs.",
            "id name trigger object.slug enabled",
            "id name description trigger enabled createdAt object createdBy",
            verbs=("list", "get", "runs"),
            is_named=True,
            example="'Greet new people'",
            query="name",
            run_columns="id status title startedAt completedAt error",
            run_fields="id status title triggerEvent error startedAt completedAt createdAt",
        ),
    )
}


def noun_app(name: str) -> CommandApp:
    """Return the command group of a noun with its shared verbs; a module in `commands` adds the others."""
    noun = NOUNS[name]
    app = CommandApp(noun.help)
    for verb in noun.verbs:
        _ADD[verb](app, noun)
    return app


def _add_list(app: CommandApp, noun: Noun) -> None:
    @app.command(
        "list", help=f"List the {noun.name}.", examples=[f"crmctl {noun.name} list", f"crmctl {noun.name} list -q '[].{noun.query}'"]
    )
    def list_all(runtime: Runtime) -> None:
        runtime.emitter.emit_items(list_items(runtime, noun), noun.view)


def _add_get(app: CommandApp, noun: Noun) -> None:
    command = f"crmctl {noun.name} get {noun.example}"
    register = app.command("get", help=f"Show one {noun.one}.", examples=[command, f"{command} -q {noun.query}"])

    def show(runtime: Runtime, words: Sequence[str]) -> None:
        from crmctl.client.answers import read_one
        from crmctl.models.resources import Item

        answer = reach(runtime, noun, words, lambda path: runtime.crm.session.request("GET", path))
        runtime.emitter.emit_item(read_one(answer, noun.one, Item).wire, noun.view)

    register(_with_item(noun, show))


def _add_delete(app: CommandApp, noun: Noun) -> None:
    of_records = {"objects": " with all its records", "attributes": " and its values in all records"}.get(noun.name, "")
    register = app.command(
        "delete",
        writes=True,
        help=f"Delete one {noun.one}{of_records}; asks first.",
        examples=[f"crmctl {noun.name} delete {noun.example} --dry-run"],
    )

    def delete(runtime: Runtime, words: Sequence[str]) -> None:
        from crmctl.client.answers import read_deleted

        description = f"the {noun.one} {' of '.join(reversed(words))}"
        runtime.emitter.check_result({"deleted": 1})
        read_before_question(runtime, lambda: reach(runtime, noun, words, lambda path: runtime.crm.session.request("GET", path)))
        stake = {"objects": "{}", "attributes": "its values in {}"}.get(noun.name)
        runtime.confirm(f"Delete {description}", (lambda: stake.format(records_at_stake(runtime, words[0]))) if stake else None)
        reach(runtime, noun, words, lambda path: read_deleted(runtime.crm.session.request("DELETE", path)))
        if stake:
            runtime.directory.forget()
        runtime.done({"deleted": 1}, f"deleted {description}")

    register(_with_item(noun, delete))


def _add_runs(app: CommandApp, noun: Noun) -> None:
    command = f"crmctl {noun.name} runs {noun.example}"

    def list_runs(runtime: Runtime, item: str, **place: Any) -> None:
        from crmctl.client.answers import Page, read_page
        from crmctl.models.resources import Item

        part = window(**place)
        path = reach(runtime, noun, [item], lambda path: path)

        def fetch(limit: int, offset: int) -> Page[Any]:
            query = [("limit", str(limit)), ("offset", str(offset))]
            return read_page(runtime.crm.session.request("GET", f"{path}/runs", query=query), "runs", Item, limit, offset)

        show_pages(runtime, fetch, part, lambda _: noun.runs_view)

    list_runs.__annotations__["item"] = item_argument(noun)
    text = f"List the runs of a {noun.one}.\n\nShows 50 unless --limit or --all asks for more."
    app.command("runs", help=text, examples=[command, f"{command} --all -o csv"])(takes("limit every offset")(list_runs))


_ADD: dict[str, Callable[[CommandApp, Noun], None]] = {"list": _add_list, "get": _add_get, "delete": _add_delete, "runs": _add_runs}


def item_argument(noun: Noun) -> Any:
    """Return the annotation of the argument that names one item."""
    if noun.in_object:
        return Annotated[str, argument("ATTR", "Slug or id of the attribute, such as email.")]
    if noun.name == "objects":
        return ObjectArgument
    name = noun.one.upper() if noun.is_named else "ID"
    return Annotated[str, argument(name, f"Id{' or exact name' if noun.is_named else ''} of the {noun.one}.")]


def _with_item(noun: Noun, call: Callable[[Runtime, Sequence[str]], None]) -> Callable[..., None]:
    """Return a command whose arguments name one item of the noun."""

    def in_object(runtime: Runtime, object_name: ObjectArgument, item: str) -> None:
        call(runtime, [object_name, item])

    def alone(runtime: Runtime, item: str) -> None:
        call(runtime, [item])

    command = in_object if noun.in_object else alone
    command.__annotations__["item"] = item_argument(noun)
    return command


def list_items(runtime: Runtime, noun: Noun) -> list[Item]:
    """Return all items; completion remembers the names of those that can be named."""
    from crmctl.client.answers import read_list
    from crmctl.models.resources import Item

    items = read_list(runtime.crm.session.request("GET", f"/{noun.name}"), noun.name, Item)
    if noun.is_named:
        from crmctl.client.schema_cache import SchemaCache

        cache = SchemaCache(runtime.paths.cache, runtime.settings.profile.value, runtime.origin, runtime.clock)
        cache.put(noun.name, [{"id": item.id, "name": item.name} for item in items])
    return items


def find_item(runtime: Runtime, noun: Noun, text: str) -> Item:
    """Return an item by id, unread, or by its exact name. Raises UsageError for an ambiguous name, NotFoundError for an unknown one."""
    from crmctl.client.directory import find_by_name
    from crmctl.models.resources import Item

    identity = runtime.shown_ids.whole(text)
    return Item.parse({"id": identity}) if is_uuid(identity) else find_by_name(list_items(runtime, noun), noun.name, text)


def reach(runtime: Runtime, noun: Noun, words: Sequence[str], call: Callable[[str], T]) -> T:
    """Return `call(path)` for the item that `words` name."""
    from crmctl.client.crm import path_of

    if noun.in_object:
        return on_attribute(runtime, words[0], words[1], lambda parent, item: call(path_of("objects", parent, noun.name, item)))
    if noun.name == "objects":
        return on_object(runtime, words[0], lambda item: call(path_of("objects", item)))
    item = find_item(runtime, noun, words[0]).id if noun.is_named else runtime.shown_ids.whole(words[0])
    with taken_for_id(item, f"there is no {noun.one} {item!r}", f"crmctl {noun.name} list shows the ids"):
        return call(path_of(noun.name, item))
