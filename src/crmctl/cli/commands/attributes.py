"""`crmctl attributes`: the fields of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from crmctl.cli.options import DataOption, ObjectArgument, PlainSetOption, argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import on_attribute, on_object, plain_fields
from crmctl.cli.verbs import NOUNS, noun_app
from crmctl.errors import RejectedError, UsageError
from crmctl.models.ids import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Attribute

app = noun_app("attributes")
NOUN = NOUNS["attributes"]


@app.command("list", examples=["crmctl attributes list people", "crmctl attributes list people --include-inactive --fields slug,type"])
def list_attributes(
    runtime: Runtime,
    object_name: ObjectArgument,
    include_inactive: Annotated[bool, flag("--include-inactive", "Include inactive attributes.")] = False,
) -> None:
    """List the attributes of an object."""
    directory, name = runtime.directory, runtime.shown_ids.whole(object_name)
    attributes = directory.every_attribute(name)[1] if include_inactive else directory.attributes(name, refresh=True)
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
    runtime: Runtime,
    object_name: ObjectArgument,
    name: Annotated[str | None, option("--name", "NAME", "Display name.")] = None,
    type: Annotated[str | None, option("--type", "TYPE", "text, email, number, select, reference ...")] = None,
    required: Annotated[bool, flag("--required", "Every record must have a value.")] = False,
    unique: Annotated[bool, flag("--unique", "No two records may have the same value.")] = False,
    is_list: Annotated[bool, flag("--list", "The attribute holds several values.")] = False,
    options: Annotated[list[str] | None, option("--option", "VALUE", "An option of a select; repeatable.")] = None,
    allowed_object: Annotated[str | None, option("--allowed-object", "OBJECT", "Object that a reference points to.")] = None,
    assignments: PlainSetOption = None,
    data: DataOption = None,
) -> None:
    """Create an attribute.

    Types: text, email, number, phone_number, checkbox, name, address, currency, date, select, list, reference.
    """
    config: Json = {"options": options} if options else {}
    if allowed_object:
        config["allowed_object_id"] = runtime.directory.object_id(allowed_object)
    values = {"name": name, "type": type, "isRequired": required or None, "isUnique": unique or None, "isList": is_list or None}
    fields: Json = {"isRequired": False, "isUnique": False} | plain_fields(runtime, values | {"config": config or None}, assignments, data)
    missing = [flag for flag, key in (("--name", "name"), ("--type", "type")) if not fields.get(key)]
    given: Json = fields.get("config") or {}
    if fields.get("type") == "select" and not given.get("options"):
        missing.append("--option")
    if fields.get("type") == "reference" and not given.get("allowed_object_id"):
        missing.append("--allowed-object")
    if missing:
        raise UsageError(f"an attribute of this kind needs {', '.join(missing)}", hint="crmctl attributes create --help")
    runtime.emitter.check_fields(NOUN.view)
    try:
        attribute = on_object(runtime, object_name, lambda target: runtime.crm.create_attribute(target, fields))
    except RejectedError as error:
        from crmctl.values.attribute_types import TYPES

        kind = str(fields["type"])
        error.hint = error.hint if kind in TYPES else did_you_mean(kind, TYPES) or error.hint
        raise
    _emit(runtime, attribute)


@app.command(
    "update",
    writes=True,
    examples=[
        "crmctl attributes update projects stage --name Phase",
        "crmctl attributes update deals stage --option add=paused --option rename=won:signed --option retire=lead --dry-run",
    ],
)
def update_attribute(
    runtime: Runtime,
    object_name: ObjectArgument,
    attribute: Annotated[str, argument("ATTR", "Slug or id of the attribute, for example email.")],
    name: Annotated[str | None, option("--name", "NAME", "The new name.")] = None,
    options: Annotated[
        list[str] | None, option("--option", "EDIT", "Of a select: add=NEW, rename=OLD:NEW or retire=OLD; repeatable.")
    ] = None,
) -> None:
    """Rename an attribute, or change the options of a select.

    Records with a renamed option get its new name, at most 10,000. Records keep a retired option; new values cannot use it. Reports and
    workflows that name an option stay as they are. Only crmctl's own service changes options by command; others have their own pages.
    """
    if (name is None) == (options is None):
        raise UsageError("give either --name or --option", hint="crmctl attributes update --help")
    edits = _option_edits(options or ())
    runtime.emitter.check_fields(NOUN.view)

    def update(target: str, item: str) -> Attribute:
        if not edits:
            return runtime.crm.update_attribute(target, item, {"name": name})
        from crmctl.client.answers import read_one
        from crmctl.models.resources import Attribute

        address = "POST /objects/{objectId}/attributes/{attributeId}/options"
        return read_one(runtime.crm.extension(address, target, item, body=edits), "attribute", Attribute)

    _emit(runtime, on_attribute(runtime, object_name, attribute, update))


def _option_edits(texts: Sequence[str]) -> Json:
    """Return the request body for the values of --option. Raises UsageError."""
    edits: Json = {}
    for text in texts:
        action, _, option = text.partition("=")
        old, _, new = option.partition(":")
        if action == "rename" and old and new and ":" not in new:
            if edits.setdefault("rename", {}).setdefault(old, new) != new:
                raise UsageError(f"--option renames {old!r} twice")
        elif action in ("add", "retire") and option:
            edits.setdefault(action, []).append(option)
        else:
            hint = "add=NEW, rename=OLD:NEW or retire=OLD; crmctl api renames options with a colon in their name"
            raise UsageError(f"--option {text!r} is no change of an option", hint=hint)
    return edits


def _emit(runtime: Runtime, attribute: Attribute) -> None:
    runtime.directory.forget()
    runtime.emitter.emit_item(attribute, NOUN.view)
