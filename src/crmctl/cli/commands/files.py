"""`crmctl files`: upload files through signed addresses, list and download them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag, option, takes
from crmctl.cli.runtime import Runtime
from crmctl.errors import NotFoundError, PartialError, UsageError, reason

if TYPE_CHECKING:
    from crmctl.client.uploads import LocalFile, UploadOutcome


app = CommandApp("Upload, list and download files.")

CONCURRENCY = 4
LONGEST_UPLOAD = 60.0
"""Seconds to wait for the storage, unless --timeout is given or another setting allows more."""
LONGEST_DOWNLOAD = 600.0
"""Seconds that a download may take, under the same terms."""
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
    runtime: Runtime,
    paths: Annotated[list[str], argument("PATH", "A file, or a folder with --recursive.")],
    bucket: Annotated[str, option("--bucket", "BUCKET", "The bucket to upload to.")],
    prefix: Annotated[str | None, option("--prefix", "PREFIX", "Prefix of every path in the bucket.")] = None,
    recursive: Annotated[bool, flag("--recursive -r", "Upload folders; files keep their relative path.")] = False,
    concurrency: Annotated[int, option("--concurrency", "N", "Simultaneous uploads.", min=1, max=32)] = CONCURRENCY,
    content_type: Annotated[str | None, option("--content-type", "TYPE", "Media type of all files; by default by its name.")] = None,
) -> None:
    """Upload files and print their addresses.

    crmctl checks all paths first, and repeats an upload if its address expires or the connection breaks.
    """
    from crmctl.client.uploads import Uploader
    from crmctl.output.views import UPLOADS

    if content_type is not None and not MEDIA_TYPE.fullmatch(content_type):
        raise UsageError(f"--content-type {content_type!r} is not a media type", hint="for example --content-type text/csv")
    runtime.emitter.check_fields(UPLOADS)
    planned = plan_uploads(paths, prefix=prefix, recursive=recursive, content_type=content_type)
    if runtime.dry_run:
        _preview(runtime, planned, bucket)
        return
    timeout = _longest(runtime, LONGEST_UPLOAD)
    with runtime.progress as progress:
        progress.start("uploading (bytes)", sum(file.size for file in planned))
        uploader = Uploader(runtime.crm, bucket, runtime.clock, advance=progress.advance, warn=runtime.messages.warn, timeout=timeout)
        outcomes = uploader.upload_all(planned, concurrency)
    _report(runtime, outcomes)


@app.command("list", examples=["crmctl files list", "crmctl files list -q '[].publicUrl'"])
@takes("limit every offset")
def list_files(runtime: Runtime, **part: Any) -> None:
    """List uploaded files, newest first.

    Shows 50 unless --limit or --all asks for more. Only crmctl's own service lists files.
    """
    from crmctl.cli.list_window import show_pages, window
    from crmctl.output.views import FILES

    show_pages(runtime, lambda limit, offset: runtime.crm.list_files(limit=limit, offset=offset), window(**part), lambda _: FILES)


@app.command(
    "download",
    examples=["crmctl files download assets/logo.png", "crmctl files download assets/logo.png -O copy.png --yes"],
)
def download_file(
    runtime: Runtime,
    file: Annotated[str, argument("BUCKET/PATH|URL", "The file, as crmctl files list shows it, or its public address.")],
    target: Annotated[Path | None, option("--out -O", "FILE", "Write to this file, not to the file's name.")] = None,
) -> None:
    """Download a file.

    The API key is not sent. --yes replaces an existing file. Services other than crmctl's own need the public address.
    """
    from crmctl.client.uploads import download
    from crmctl.files.whole_files import check_place, is_special, whole_bytes
    from crmctl.output.views import UPLOADS

    runtime.emitter.check_fields(UPLOADS)
    address = file if "://" in file else _public_address(runtime, file)
    path = target or Path(unquote(urlsplit(address).path).rpartition("/")[2] or "download")
    check_place(path)
    if path.exists() and not is_special(path) and not runtime.assume_yes:
        raise UsageError(f"{path} exists", hint="--yes replaces it", code="file_exists")
    with runtime.progress as progress, whole_bytes(path) as stream:
        progress.start("downloading (bytes)")

        def take(piece: bytes) -> None:
            stream.write(piece)
            progress.advance(len(piece))

        headers = download(runtime.crm.session, address, take, _longest(runtime, LONGEST_DOWNLOAD))
        size = stream.tell()
    kind = headers.get("content-type")
    runtime.emitter.emit_item({"file": str(path), "publicUrl": address, "bytes": size, "contentType": kind}, UPLOADS)


def _public_address(runtime: Runtime, name: str) -> str:
    """Return the address of BUCKET/PATH, which differs from that of any other file only behind the storage's."""
    for stored in runtime.crm.list_files(limit=1).items:
        place = quote(f"{stored.bucket}/{stored.path}")
        if stored.public_url and stored.public_url.endswith(place):
            return stored.public_url.removesuffix(place) + quote(name.removeprefix("/"))
    raise NotFoundError(f"there is no file {name}", hint="crmctl files list")


def _preview(runtime: Runtime, planned: Sequence[LocalFile], bucket: str) -> None:
    bodies = [{"path": file.target, "bucket": bucket} for file in planned]
    if len(bodies) == 1:
        runtime.crm.upload_url(**bodies[0])
    runtime.emitter.emit_items({"dryRun": True, "method": "POST", "path": "/api/v1/files/upload-url", "body": body} for body in bodies)
    runtime.messages.note("dry run: nothing was sent")


def _longest(runtime: Runtime, usual: float) -> float:
    """Return --timeout, else the larger of the usual time and the setting, in seconds."""
    timeout = runtime.settings.timeout.value
    return timeout if runtime.flags.get("timeout") else max(timeout, usual)


def _report(runtime: Runtime, outcomes: Sequence[UploadOutcome]) -> None:
    """Show the stored files. Raises the error if none was stored, PartialError naming the others."""
    from crmctl.output.views import UPLOADS

    failures = [(outcome.file, outcome.error) for outcome in outcomes if outcome.error is not None]
    stored = [
        {
            "file": str(outcome.file.source),
            "path": outcome.file.target,
            "publicUrl": outcome.public_url,
            "bytes": outcome.size,
            "contentType": outcome.file.content_type,
        }
        for outcome in outcomes
        if outcome.error is None
    ]
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


def plan_uploads(paths: Sequence[str], *, prefix: str | None, recursive: bool, content_type: str | None) -> list[LocalFile]:
    """Return the files under `paths` with their targets. Raises UsageError naming every unusable path."""
    front = [segment for segment in (prefix or "").replace("\\", "/").split("/") if segment]
    if any(segment in (".", "..") for segment in front):
        raise UsageError(f"--prefix {prefix!r} must not hold . or ..")
    problems: list[str] = []
    files: dict[str, LocalFile] = {}
    for source, inside in _walk(paths, recursive, problems):
        target = "/".join([*front, *inside])
        try:
            file = _local_file(source, target, content_type)
        except OSError as error:
            problems.append(f"{_printable(source)}: {reason(error)}")
        except UnicodeEncodeError:
            problems.append(f"{_printable(source)}: its name is not UTF-8")
        else:
            if (other := files.setdefault(target, file)) is not file:
                problems.append(f"{_printable(other.source)} and {_printable(source)} would both become {target}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UsageError(
            f"nothing was uploaded: {'; '.join(problems[:5])}{more}",
            hint="--recursive uploads folders" if any("is a folder" in problem for problem in problems) else None,
            code="unreadable_file",
            details={"problems": problems},
        )
    if not files:
        raise UsageError(f"there is no file in {', '.join(paths)}", code="no_files")
    return [*files.values()]


def _walk(paths: Sequence[str], recursive: bool, problems: list[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield files and the segments of their path below the prefix."""
    for text in paths:
        path = Path(text)
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            problems.append(f"{_printable(path)}: {reason(error)}")
            continue
        if not is_folder:
            yield path, [path.name]
        elif not recursive:
            problems.append(f"{_printable(path)} is a folder")
        else:
            for place, folders, names in os.walk(path, onerror=lambda error: problems.append(f"{error.filename}: {reason(error)}")):
                folders.sort()
                for source in (Path(place, name) for name in sorted(names)):
                    yield source, list(source.relative_to(path).parts)


def _local_file(source: Path, target: str, content_type: str | None) -> LocalFile:
    from crmctl.client.uploads import LocalFile
    from crmctl.client.uploads import content_type as guessed

    target.encode()
    if not stat.S_ISREG(source.stat().st_mode):
        raise OSError(0, "not a regular file")
    with source.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size and stream.read(1):  # of /proc
            raise OSError(0, "not a regular file")
    return LocalFile(source, target, size, content_type or guessed(source.name))


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()
