"""`crmctl schema`: objects and attributes as a file that can be kept, compared and laid on another service."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import read_input
from crmctl.errors import ExitCode

if TYPE_CHECKING:
    from crmctl.schema.apply import SchemaChange
    from crmctl.schema.schema_document import Present, SchemaDocument

app = CommandApp("Write objects and attributes down, compare them with a service, apply them.")

FileArgument = Annotated[str, argument("FILE|-", "A schema as crmctl schema pull prints it, JSON or YAML.")]


@app.command("pull", examples=["crmctl schema pull -o yaml > schema.yaml", "crmctl schema pull people companies"])
def pull_schema(
    runtime: Runtime,
    objects: Annotated[list[str] | None, argument("OBJECT...", "Only these objects; all of them when none is named.")] = None,
) -> None:
    """Print the objects and attributes of the service, without ids."""
    from crmctl.schema.schema_document import read_service, to_document
    from crmctl.values.yaml_text import dumps

    document = to_document(read_service(runtime.crm), objects or ()).wire()
    runtime.emitter.emit_result(document, dumps(document).rstrip("\n") if runtime.output_format == "table" else None)


@app.command("diff", examples=["crmctl schema diff schema.yaml", "crmctl schema diff schema.yaml --exit-code || echo different"])
def diff_schema(
    runtime: Runtime,
    file: FileArgument,
    prune: Annotated[bool, flag("--prune", "Compare as schema apply --prune would: the file is about everything.")] = False,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 11 when there are differences.")] = False,
) -> int:
    """Show what separates the service from a schema file."""
    from crmctl.output.views import SCHEMA_CHANGES

    changes, _, _ = _compare(runtime, file, prune=prune)
    has_changes = runtime.emitter.emit_items([change.wire() for change in changes], SCHEMA_CHANGES)
    return ExitCode.DIFFERENT if has_changes and exit_code else ExitCode.OK


@app.command(
    "apply",
    writes=True,
    examples=["crmctl schema apply schema.yaml --dry-run", "crmctl schema apply schema.yaml"],
)
def apply_schema(
    runtime: Runtime,
    file: FileArgument,
    prune: Annotated[bool, flag("--prune", "Delete what only the service has, with its data.")] = False,
) -> None:
    """Create and rename what a schema file says and the service has not.

    Nothing is deleted without --prune. Running it again changes nothing more.
    """
    from crmctl.schema.apply import ChangeAction, apply, refuse_conflicts, steps

    changes, document, present = _compare(runtime, file, prune=prune)
    refuse_conflicts(changes)
    if runtime.dry_run:
        from crmctl.cli.preview import API, show_requests

        requests = [step.wire() for step in steps(document, present, changes)]
        requests = [request | {"path": API + request["path"]} for request in requests]
        show_requests(runtime, requests, {"dryRun": True, "requests": requests})
        return
    if leaving := [change.place for change in changes if change.action is ChangeAction.DELETE]:
        runtime.confirm(f"Delete {', '.join(leaving)}, with all their data")
    made: Counter[str] = Counter()

    def done(change: SchemaChange) -> None:
        made[change.action] += 1
        runtime.messages.note(f"{change.action}d {change.place}")

    try:
        apply(runtime.crm, document, changes, present, done)
    finally:
        if made:
            runtime.directory.forget()
    counts = {f"{action}d": made[action] for action in (ChangeAction.CREATE, ChangeAction.UPDATE, ChangeAction.DELETE)}
    nothing = "nothing to do: the service has all of it"
    runtime.done(counts, ", ".join(f"{name} {count}" for name, count in counts.items()) if made else nothing)


def _compare(runtime: Runtime, file: str, *, prune: bool) -> tuple[list[SchemaChange], SchemaDocument, Present]:
    from crmctl.schema.apply import compare
    from crmctl.schema.schema_document import read_schema, read_service

    document = read_schema(read_input(runtime, file), "stdin" if file == "-" else file)
    present = read_service(runtime.crm, [spec.slug for spec in document.objects])
    return compare(document, present, prune=prune), document, present
