"""Files over HTTP: the signed PUT, and public reads."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crmctl.errors import reason
from crmctl.service.context import Context
from crmctl.service.faults import NotFound, Unavailable
from crmctl.service.files.storage import CHUNK, Incoming, Permit, Stored, disk_of, public_url, read_permit, read_pieces, use_permit
from crmctl.service.http.endpoint import NamedRoute, body_chunks, is_known
from crmctl.service.http.json_answers import JsonAnswer, bad_request

DEFAULT_TYPE = "application/octet-stream"

_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?")
_SHOWN = re.compile(r"(image/(png|jpeg|gif|webp|avif|bmp)|text/plain|audio/[a-z0-9.+-]+|video/[a-z0-9.+-]+)")
"""Types that browsers may show. They download all others, so that no page or SVG runs as part of this service."""


def routes(context: Context) -> list[NamedRoute]:
    """Return the routes `PUT` and `GET /files/BUCKET/PATH`."""
    disk = disk_of(context.settings)
    disk.sweep()

    async def upload(request: Request) -> Response:
        bucket, path = request.path_params["bucket"], request.path_params["path"]
        query = dict(parse_qsl(request.scope["query_string"].decode("ascii", "replace")))
        now = context.clock.now()
        permit: Permit = await run_in_threadpool(context.engine.read, lambda tx: read_permit(tx, bucket, path, query, now=now))
        content_type = _content_type(request)
        try:
            incoming = await run_in_threadpool(disk.receive, bucket, path, content_type, _declared(request))
            size = await _receive(context, request, permit, incoming)
        except OSError as error:
            raise Unavailable(f"the file could not be stored: {reason(error)}") from error
        return JsonAnswer({"publicUrl": public_url(context.settings, bucket, path), "contentType": content_type, "size": size})

    def show(request: Request) -> Response:
        bucket, path = request.path_params["bucket"], request.path_params["path"]
        stored = disk.open(bucket, path)
        if stored is None:
            raise NotFound("there is no file at this path")
        return _shown(request, stored, path.rpartition("/")[2])

    place = "/files/{bucket}/{path:path}"
    return [NamedRoute(place, upload, methods=["PUT"]), NamedRoute(place, show)]


def _declared(request: Request) -> int:
    """Return the declared length, 0 without one. The reading of the body refuses a malformed one."""
    length = request.headers.get("content-length", "")
    return int(length) if re.fullmatch("[0-9]{1,15}", length) else 0


def _content_type(request: Request) -> str:
    content_type = request.headers.get("content-type", DEFAULT_TYPE).strip()
    if len(content_type) > 255 or not _CONTENT_TYPE.fullmatch(content_type):
        raise bad_request("the Content-Type header is not a media type", "Content-Type")
    return content_type


async def _receive(context: Context, request: Request, permit: Permit, incoming: Incoming) -> int:
    """Write the body to disk, use up the permit, and return the size in bytes."""
    try:
        size, waiting = 0, bytearray()
        async for chunk in body_chunks(request, permit.limit, context.settings.body_timeout):
            waiting += chunk
            size += len(chunk)
            if len(waiting) >= CHUNK:
                await run_in_threadpool(incoming.write, bytes(waiting))
                waiting.clear()
        await run_in_threadpool(incoming.write, bytes(waiting))
        await run_in_threadpool(incoming.finish, lambda: context.engine.write(lambda tx: use_permit(tx, permit, now=context.clock.now())))
    finally:
        incoming.close()
    return size


def _shown(request: Request, stored: Stored, name: str) -> Response:
    kind = "inline" if _SHOWN.fullmatch(stored.content_type.partition(";")[0].strip().lower()) else "attachment"
    headers = {
        "Cache-Control": "no-cache",
        "Content-Disposition": f"{kind}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "ETag": f'"{stored.version}"',
        "X-Content-Type-Options": "nosniff",
    }
    if is_known(request, headers["ETag"]):
        stored.file.close()
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    # Among the headers, because the framework adds a charset to a media type.
    headers |= {"Content-Type": stored.content_type, "Content-Length": str(stored.size)}
    if request.state.method == "HEAD":
        stored.file.close()
        return Response(headers=headers)
    return StreamingResponse(read_pieces(stored.file), headers=headers)
