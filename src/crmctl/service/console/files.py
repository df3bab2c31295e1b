"""The page of files."""

from __future__ import annotations

import contextlib

from crmctl.errors import reason
from crmctl.service.console.pages import LARGEST_FILE
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.faults import BadRequest, Unavailable
from crmctl.service.files.storage import check_bucket, disk_of, list_files, normalise_path

MOST_SHOWN = 200


def show_files(_tx: object, visit: Visit) -> ConsolePage:
    settings = visit.context.settings
    values = {
        "files": list_files(settings, MOST_SHOWN) if settings.files_s3 is None else [],
        "most": MOST_SHOWN,
        "is_local": settings.files_s3 is None,
        "largest": min(LARGEST_FILE, settings.file_limit) // (1024 * 1024),
        "fields": {"bucket": visit.text("bucket") or "uploads", "folder": visit.text("folder")},
    }
    return ConsolePage("files.html", values)


def upload(visit: Visit) -> Redirect:
    settings = visit.context.settings
    if settings.files_s3 is not None:
        raise BadRequest("files are stored in S3; upload them with crmctl files upload")
    file = visit.files.get("file")
    if file is None or not file.name or not file.content:
        raise BadRequest("choose a file that is not empty", {"field": "file"})
    bucket = check_bucket(visit.text("bucket"))
    path = normalise_path("/".join(part for part in (visit.text("folder").strip("/"), file.name) if part))
    if len(file.content) > min(LARGEST_FILE, settings.file_limit):
        raise BadRequest("the file is too large for this page", {"field": "file"})
    try:
        with contextlib.closing(disk_of(settings).receive(bucket, path, file.content_type, len(file.content))) as incoming:
            incoming.write(file.content)
            incoming.finish()
    except OSError as error:
        raise Unavailable(f"the file could not be stored: {reason(error)}") from error
    return Redirect("/files", "file-uploaded")
