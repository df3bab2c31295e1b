"""The page of files."""

from __future__ import annotations

import contextlib

from crmctl.errors import reason
from crmctl.service.console.pages import NavigationLink, Pages
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.context import FILES_FOLDER
from crmctl.service.faults import BadRequest, Unavailable
from crmctl.service.files.storage import Disk, check_bucket, normalise_path, url_path
from crmctl.service.store.members import MemberRole

MOST_SHOWN = 200
LARGEST = 20 * 1024 * 1024
"""Bytes of a file from the browser; larger ones are uploaded by `crmctl files upload`."""


def add_pages(pages: Pages) -> None:
    pages.navigation.append(NavigationLink("Work", "/files", "Files"))

    @pages.get("/files", is_slow=True)
    def list_files(_tx: object, visit: Visit) -> ConsolePage:
        return _files(visit)

    @pages.post("/files", needs=MemberRole.MEMBER, in_transaction=False, form_limit=LARGEST + 64 * 1024, back=list_files)
    def upload(visit: Visit) -> Redirect:
        if visit.context.settings.files_s3 is not None:
            raise BadRequest("files are stored in S3; upload them with crmctl files upload")
        file = visit.files.get("file")
        if file is None or not file.name or not file.content:
            raise BadRequest("choose a file that is not empty", {"field": "file"})
        bucket = check_bucket(visit.text("bucket"))
        path = normalise_path("/".join(part for part in (visit.text("folder").strip("/"), file.name) if part))
        if len(file.content) > min(LARGEST, visit.context.settings.file_limit):
            raise BadRequest("the file is too large for this page", {"field": "file"})
        try:
            with contextlib.closing(_disk(visit).receive(bucket, path, file.content_type, len(file.content))) as incoming:
                incoming.write(file.content)
                incoming.finish()
        except OSError as error:
            raise Unavailable(f"the file could not be stored: {reason(error)}") from error
        return Redirect("/files", "file-uploaded")


def _disk(visit: Visit) -> Disk:
    return Disk(visit.context.settings.data_dir / FILES_FOLDER, visit.context.settings.quotas.files)


def _files(visit: Visit) -> ConsolePage:
    is_local = visit.context.settings.files_s3 is None
    found = _disk(visit).list_files(MOST_SHOWN) if is_local else []
    values = {
        "files": [
            {"file": file, "url": f"{visit.context.settings.address}/files/{url_path(file['bucket'], file['path'])}"} for file in found
        ],
        "most": MOST_SHOWN,
        "is_local": is_local,
        "largest": min(LARGEST, visit.context.settings.file_limit) // (1024 * 1024),
        "fields": {"bucket": visit.text("bucket") or "uploads", "folder": visit.text("folder")},
    }
    return ConsolePage("files.html", values)
