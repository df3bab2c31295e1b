"""REPORT and WORKFLOW on the command line: a UUID or an exact name; what was listed on the way is kept for completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.schema_cache import SchemaCache
    from crmctl.models.reports import Report
    from crmctl.models.workflows import Workflow

ReportArgument = Annotated[str, typer.Argument(metavar="REPORT", help="Id or exact name of the report.")]
WorkflowArgument = Annotated[str, typer.Argument(metavar="WORKFLOW", help="Id or exact name of the workflow.")]


def list_reports(runtime: Runtime) -> list[Report]:
    from crmctl.client.named import REPORTS, remember_names

    reports = runtime.crm.list_reports()
    remember_names(_cache(runtime), REPORTS, reports)
    return reports


def report_id(runtime: Runtime, text: str) -> str:
    """The id of a report. Raises UsageError for a name that several have, NotFoundError for one that none has."""
    from crmctl.client.named import REPORTS, find_by_name
    from crmctl.models.ids import is_uuid

    return text if is_uuid(text) else find_by_name(list_reports(runtime), REPORTS, text).id


def list_workflows(runtime: Runtime) -> list[Workflow]:
    from crmctl.client.named import WORKFLOWS, remember_names

    workflows = runtime.crm.list_workflows()
    remember_names(_cache(runtime), WORKFLOWS, workflows)
    return workflows


def find_workflow(runtime: Runtime, text: str) -> Workflow:
    """A workflow as far as it is known: of one given by id, nothing but that. Raises like `report_id`."""
    from crmctl.client.named import WORKFLOWS, find_by_name
    from crmctl.models.ids import is_uuid
    from crmctl.models.workflows import Workflow

    return Workflow(id=text) if is_uuid(text) else find_by_name(list_workflows(runtime), WORKFLOWS, text)


def _cache(runtime: Runtime) -> SchemaCache:
    from crmctl.client.schema_cache import SchemaCache

    return SchemaCache(runtime.paths.cache, runtime.settings.profile.value, runtime.settings.require_origin(), runtime.clock)
