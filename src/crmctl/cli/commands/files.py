"""`crmctl files`: upload files through signed addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import PartialError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.uploads import LocalFile, UploadOutcome

app = CommandApp("Upload files.")

CONCURRENCY = 4
MOST_AT_ONCE = 32
MEDIA_TYPE = re.compile(r"[\w.+\-]+/[\w.+\-]+(\s*;\s*[\w.\-]+=[\w.\-\"]+)*", re.ASCII)


@app.command(
    "upload",
    writes=True,
    examples=[
        "crmctl files upload logo.png --bucket assets",
        "crmctl files upload contracts --recursive --bucket documents --prefix 2026/signed",
        "crmctl files upload logo.png photo.jpg --bucket assets --prefix brand -q '[].publicUrl'",
    ],
)
def upload_files(
    ctx: typer.Context,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="A file, or a folder with --recursive.")],
    bucket: Annotated[str, typer.Option("--bucket", metavar="BUCKET", help="The bucket to upload to.")],
    prefix: Annotated[str | None, typer.Option("--prefix", metavar="PREFIX", help="Put this in front of every path in the bucket.")] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Upload what is in folders; files keep their path inside the folder.")
    ] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="Upload so many files at once.")] = CONCURRENCY,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Media type of all files; found out by content and name unless given."),
    ] = None,
) -> None:
    """Upload files and print the address of each.

    All paths are checked before anything is sent. Uploads are repeated with a fresh address when one has expired or the connection broke.
    """
    from crmctl.cli.upload_paths import plan_uploads

    runtime: Runtime = ctx.obj
    if not 1 <= concurrency <= MOST_AT_ONCE:
        raise UsageError(f"--concurrency must be from 1 to {MOST_AT_ONCE}, not {concurrency}")
    if content_type is not None and not MEDIA_TYPE.fullmatch(content_type):
        raise UsageError(f"--content-type {content_type!r} is not a media type", hint="for example --content-type text/csv")
    _check_fields(runtime)
    planned = plan_uploads(paths, prefix=prefix, recursive=recursive, content_type=content_type)
    if runtime.dry_run:
        _preview(runtime, planned, bucket)
    else:
        _report(runtime, _upload(runtime, planned, bucket, concurrency))


def _check_fields(runtime: Runtime) -> None:
    from crmctl.output.views import UPLOADS

    runtime.emitter.check_fields(UPLOADS)


def _preview(runtime: Runtime, planned: Sequence[LocalFile], bucket: str) -> None:
    bodies = [{"path": file.target, "bucket": bucket} for file in planned]
    if len(bodies) == 1:
        runtime.crm.upload_url(**bodies[0])
    runtime.emitter.emit_items({"dryRun": True, "method": "POST", "path": "/api/v1/files/upload-url", "body": body} for body in bodies)
    runtime.messages.note("dry run: nothing was sent")


def _upload(runtime: Runtime, planned: Sequence[LocalFile], bucket: str, concurrency: int) -> list[UploadOutcome]:
    from crmctl.client.uploads import Uploader

    timeout = max(runtime.settings.timeout.value, 60.0)
    with runtime.progress as progress:
        progress.start("uploading (bytes)", sum(file.size for file in planned))
        uploader = Uploader(runtime.crm, bucket, runtime.clock, advance=progress.advance, warn=runtime.messages.warn, timeout=timeout)
        return uploader.upload_all(planned, concurrency)


def _report(runtime: Runtime, outcomes: Sequence[UploadOutcome]) -> None:
    """Show what was stored. Raises the error when nothing was, PartialError naming each file that was not."""
    from crmctl.output.views import UPLOADS

    failures = [(outcome.file, outcome.error) for outcome in outcomes if outcome.error is not None]
    stored = [_document(outcome) for outcome in outcomes if outcome.error is None]
    details = [{"file": str(file.source), "path": file.target, "code": error.code, "message": error.message} for file, error in failures]
    if failures and not stored:
        file, error = failures[0]
        error.details = {"failures": details}
        error.message = f"{file.source}: {error.message}"
        if len(failures) > 1:
            error.message = f"none of {len(failures)} files was uploaded; {error.message}"
        raise error
    runtime.emitter.emit_items(stored, UPLOADS)
    if failures:
        if not runtime.messages.machine:
            for file, error in failures:
                runtime.messages.warn(f"{file.source}: {error.message}")
        raise PartialError(
            f"{len(failures)} of {len(outcomes)} files were not uploaded: {', '.join(str(file.source) for file, _ in failures[:5])}"
            + (" and others" if len(failures) > 5 else ""),
            details={"failures": details},
            hint="run it again with these files: uploading a file twice does no harm",
        )


def _document(outcome: UploadOutcome) -> dict[str, Any]:
    file = outcome.file
    return {
        "file": str(file.source),
        "path": file.target,
        "publicUrl": outcome.public_url,
        "bytes": outcome.size,
        "contentType": file.content_type,
    }
