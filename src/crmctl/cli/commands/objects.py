"""`crmctl objects`: the objects of the organization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from crmctl.cli.options import DataOption, ObjectArgument, PlainSetOption, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import on_object, plain_fields
from crmctl.cli.verbs import NOUNS, noun_app

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json

app = noun_app("objects")
NOUN = NOUNS["objects"]

PluralOption = Annotated[str | None, option("--plural-name", "NAME", "Plural name, such as Projects.")]
DescriptionOption = Annotated[str | None, option("--description", "TEXT", "Purpose of the object.")]


@app.command("list", examples=["crmctl objects list", "crmctl objects list -q '[].slug'"])
def list_objects(runtime: Runtime) -> None:
    """List the active objects."""
    runtime.emitter.emit_items(runtime.directory.objects(refresh=True), NOUN.view)


@app.command("get", examples=["crmctl objects get people", "crmctl objects get people -q 'attributes[].slug'"])
def get_object(runtime: Runtime, object_name: ObjectArgument) -> None:
    """Show one object with its attributes."""
    crm_object, attributes = on_object(runtime, object_name, runtime.crm.get_object)
    item = dict(crm_object.wire)
    if attributes is None:
        item["attributes"] = [attribute.wire for attribute in runtime.crm.list_attributes(crm_object.id)]
    runtime.emitter.emit_item(item, NOUN.view)


@app.command(
    "create",
    writes=True,
    examples=[
        "crmctl objects create --slug vehicles --singular-name Vehicle --plural-name Vehicles --description 'Cars and vans'",
        "crmctl objects create --slug boats --singular-name Boat --plural-name Boats --dry-run",
    ],
)
def create_object(
    runtime: Runtime,
    slug: Annotated[str | None, option("--slug", "SLUG", "Short name for commands and addresses.")] = None,
    singular_name: Annotated[str | None, option("--singular-name", "NAME", "Singular name, such as Project.")] = None,
    plural_name: PluralOption = None,
    description: DescriptionOption = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Create a custom object."""
    values = {"slug": slug, "singularName": singular_name, "pluralName": plural_name, "description": description}
    fields = plain_fields(runtime, values, assignments, data)
    runtime.emitter.check_fields(NOUN.view)
    _emit(runtime, runtime.crm.create_object(fields).wire)


@app.command(
    "update",
    writes=True,
    examples=["crmctl objects update projects --description 'What we build'", "crmctl objects update projects --inactive --dry-run"],
)
def update_object(
    runtime: Runtime,
    object_name: ObjectArgument,
    plural_name: PluralOption = None,
    description: DescriptionOption = None,
    active: Annotated[bool | None, flag("--active/--inactive", "Show the object in lists, or hide it.")] = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Change a custom object; standard objects cannot be changed."""
    fields = plain_fields(runtime, {"pluralName": plural_name, "description": description, "isActive": active}, assignments, data)
    runtime.emitter.check_fields(NOUN.view)
    changed = on_object(runtime, object_name, lambda target: runtime.crm.update_object(target, fields))
    _emit(runtime, changed.wire)
    if changed.is_active is False:
        runtime.messages.note(f"only its id names an inactive object: crmctl objects update {changed.id} --active shows it again")


def _emit(runtime: Runtime, wire: Json) -> None:
    runtime.directory.forget()
    runtime.emitter.emit_item(wire, NOUN.view)
