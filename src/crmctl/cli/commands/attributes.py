"""`crmctl attributes`: the fields of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.options import DataOption, ObjectArgument, PlainSetOption
from crmctl.cli.targets import on_attribute, on_object, plain_fields
from crmctl.cli.verbs import NOUNS, noun_app
from crmctl.errors import RejectedError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Attribute

app = noun_app("attributes")
NOUN = NOUNS["attributes"]

AttributeArgument = Annotated[str, typer.Argument(metavar="ATTR", help="Slug or id of the attribute, for example email.")]


@app.command("list", examples=["crmctl attributes list people", "crmctl attributes list people --include-inactive --fields slug,type"])
def list_attributes(
    ctx: typer.Context,
    object_name: ObjectArgument,
    include_inactive: Annotated[bool, typer.Option("--include-inactive", help="Include inactive attributes.")] = False,
) -> None:
    """List the attributes of an object."""
    runtime: Runtime = ctx.obj
    attributes = on_object(runtime, object_name, lambda target: runtime.crm.list_attributes(target, include_inactive=include_inactive))
    runtime.emitter.emit_items(attributes, NOUN.view)


@app.command(
    "create",
    writes=True,
    examples=[
        "crmctl attributes create projects --name Budget --type currency",
        "crmctl attributes create projects --name Size --type select --option small --option large --required",
        "crmctl attributes create projects --name Owner --type reference --allowed-object people --dry-run",
    ],
)
def create_attribute(
    ctx: typer.Context,
    object_name: ObjectArgument,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Display name.")] = None,
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="text, email, number, select, reference ...")] = None,
    required: Annotated[bool, typer.Option("--required", help="Every record must have a value.")] = False,
    unique: Annotated[bool, typer.Option("--unique", help="No two records may have the same value.")] = False,
    is_list: Annotated[bool, typer.Option("--list", help="The attribute holds several values.")] = False,
    options: Annotated[list[str] | None, typer.Option("--option", metavar="VALUE", help="An option of a select; repeatable.")] = None,
    allowed_object: Annotated[
        str | None, typer.Option("--allowed-object", metavar="OBJECT", help="Object that a reference points to.")
    ] = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Create an attribute.

    Types: text, email, number, phone_number, checkbox, name, address, currency, date, select, list, reference.
    """
    runtime: Runtime = ctx.obj
    config: Json = {"options": options} if options else {}
    if allowed_object:
        config["allowed_object_id"] = runtime.directory.object_id(allowed_object)
    given = {"name": name, "type": type, "isRequired": required or None, "isUnique": unique or None, "isList": is_list or None}
    fields = {"isRequired": False, "isUnique": False} | plain_fields(runtime, given | {"config": config or None}, assignments, data)
    _check_config(fields)
    try:
        made = on_object(runtime, object_name, lambda target: runtime.crm.create_attribute(target, fields))
    except RejectedError as error:
        error.hint = _type_meant(fields["type"]) or error.hint
        raise
    _emit(runtime, made)


def _type_meant(given: Any) -> str | None:
    """Return a hint for an unknown type."""
    from crmctl.models.ids import suggestion
    from crmctl.values.attribute_types import TYPES

    return None if given in TYPES else suggestion(str(given), list(TYPES), f"types: {', '.join(TYPES)}")


def _check_config(fields: Json) -> None:
    missing = [flag for flag, key in (("--name", "name"), ("--type", "type")) if not fields.get(key)]
    config = fields.get("config") or {}
    if fields.get("type") == "select" and not config.get("options"):
        missing.append("--option")
    if fields.get("type") == "reference" and not config.get("allowed_object_id"):
        missing.append("--allowed-object")
    if missing:
        raise UsageError(f"an attribute of this kind needs {', '.join(missing)}", hint="crmctl attributes create --help")


@app.command("update", writes=True, examples=["crmctl attributes update projects stage --name Phase"])
def update_attribute(
    ctx: typer.Context,
    object_name: ObjectArgument,
    attribute: AttributeArgument,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The new name.")],
) -> None:
    """Rename an attribute; the service changes nothing else."""
    runtime: Runtime = ctx.obj
    renamed = on_attribute(
        runtime, object_name, attribute, lambda target, found: runtime.crm.update_attribute(target, found, {"name": name})
    )
    _emit(runtime, renamed)


def _emit(runtime: Runtime, attribute: Attribute) -> None:
    runtime.schema_changed()
    runtime.emitter.emit_item(attribute, NOUN.view)
