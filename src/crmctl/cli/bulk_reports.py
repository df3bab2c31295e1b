"""`bulk import --dry-run --report`: the findings on stdout, in the form that a build system reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crmctl.cli.bulk_context import ReportListener, RuntimeContext
from crmctl.errors import CrmctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from crmctl.bulk.usecases.import_preview import ImportPreview
    from crmctl.bulk.usecases.requests import ImportRequest
    from crmctl.cli.runtime import Runtime


def report_import(runtime: Runtime, request: ImportRequest, form: str, describe: Callable[[ImportPreview], str]) -> None:
    """Check a file and report, with `describe` on what an import would do.

    Raises the error because of which it would not be imported, after the report.
    """
    from crmctl.bulk.usecases.finding_reports import FORMS, FindingReport
    from crmctl.bulk.usecases.import_preview import preview_import
    from crmctl.bulk.usecases.requests import check_choice

    check_choice("--report", form, FORMS)
    if asked := next((name for name in ("output", "json", "query", "fields") if runtime.flags.get(name)), None):
        raise UsageError(f"--report and --{asked} exclude each other", hint="leave one of them out")
    with FindingReport(form, request.file) as report:
        failure: CrmctlError | None = None
        try:
            preview = preview_import(RuntimeContext(runtime, ReportListener(runtime, report.add)), request)
            failure, sentence = preview.error, describe(preview).replace("\n", "; ")
            if failure is not None and not report.errors:
                report.add_error(failure)
        except CrmctlError as error:
            failure, sentence = error, "the file was not checked"
            report.add_error(error)
        for piece in report.text(f"{report.file} into {request.object}", sentence):
            runtime.streams.write_out(piece)
    if failure is not None:
        failure.details = None
        raise failure
