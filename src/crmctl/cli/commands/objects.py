"""`crmctl objects`: the data structures of the organization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.options import DataOption, ObjectArgument, PlainSetOption
from crmctl.cli.targets import on_object, plain_fields, records_at_stake

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("List and manage objects such as people or deals.")

PluralOption = Annotated[str | None, typer.Option("--plural-name", metavar="NAME", help="Name of many, for example Projects.")]
DescriptionOption = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What the object is for.")]


@app.command("list", examples=["crmctl objects list", "crmctl objects list -q '[].slug'"])
def list_objects(ctx: typer.Context) -> None:
    """List the active objects."""
    from crmctl.output.views import OBJECTS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_items(runtime.directory.objects(refresh=True), OBJECTS)


@app.command("get", examples=["crmctl objects get people", "crmctl objects get people -q 'attributes[].slug'"])
def get_object(ctx: typer.Context, object_name: ObjectArgument) -> None:
    """Show one object with its attributes."""
    from crmctl.output.views import OBJECTS

    runtime: Runtime = ctx.obj
    found, attributes = on_object(runtime, object_name, runtime.crm.get_object)
    item = dict(found.wire)
    if attributes is None:
        item["attributes"] = [attribute.wire for attribute in runtime.crm.list_attributes(found.id)]
    runtime.emitter.emit_item(item, OBJECTS)


@app.command(
    "create",
    writes=True,
    examples=[
        "crmctl objects create --slug vehicles --singular-name Vehicle --plural-name Vehicles --description 'Cars and vans'",
        "crmctl objects create --slug boats --singular-name Boat --plural-name Boats --dry-run",
    ],
)
def create_object(
    ctx: typer.Context,
    slug: Annotated[str | None, typer.Option("--slug", metavar="SLUG", help="Short name used in commands and addresses.")] = None,
    singular_name: Annotated[str | None, typer.Option("--singular-name", metavar="NAME", help="Name of one, for example Project.")] = None,
    plural_name: PluralOption = None,
    description: DescriptionOption = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Create a custom object."""
    runtime: Runtime = ctx.obj
    given = {"slug": slug, "singularName": singular_name, "pluralName": plural_name, "description": description}
    fields = plain_fields(runtime, given, assignments, data)
    _emit(runtime, runtime.crm.create_object(fields).wire)


@app.command(
    "update",
    writes=True,
    examples=["crmctl objects update projects --description 'What we build'", "crmctl objects update projects --inactive --dry-run"],
)
def update_object(
    ctx: typer.Context,
    object_name: ObjectArgument,
    plural_name: PluralOption = None,
    description: DescriptionOption = None,
    active: Annotated[bool | None, typer.Option("--active/--inactive", help="Show it in lists, or hide it.")] = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Change a custom object; standard objects cannot be changed."""
    runtime: Runtime = ctx.obj
    fields = plain_fields(runtime, {"pluralName": plural_name, "description": description, "isActive": active}, assignments, data)
    _emit(runtime, on_object(runtime, object_name, lambda target: runtime.crm.update_object(target, fields)).wire)


@app.command("delete", writes=True, examples=["crmctl objects delete projects --dry-run"])
def delete_object(ctx: typer.Context, object_name: ObjectArgument) -> None:
    """Delete a custom object with all its records; asks first."""
    runtime: Runtime = ctx.obj
    runtime.confirm(f"Delete the object {object_name}", lambda: records_at_stake(runtime, object_name))
    on_object(runtime, object_name, runtime.crm.delete_object)
    runtime.schema_changed()
    runtime.done({"deleted": 1}, f"deleted the object {object_name}")


def _emit(runtime: Runtime, wire: dict[str, Any]) -> None:
    from crmctl.output.views import OBJECTS

    runtime.schema_changed()
    runtime.emitter.emit_item(wire, OBJECTS)
