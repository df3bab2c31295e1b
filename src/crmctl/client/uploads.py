"""Upload files through signed addresses, detect their type, and download them."""

from __future__ import annotations

import mimetypes
import os
import random as randomness
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path, PurePath
from urllib.parse import urljoin, urlsplit

from crmctl.client.answers import Answer, explanation
from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.clock import Backoff, Clock, retry_after
from crmctl.config.settings import is_loopback
from crmctl.errors import (
    ConfigError,
    CrmctlError,
    DeniedError,
    InterruptedByUser,
    NetworkError,
    NotFoundError,
    RejectedError,
    ServiceError,
    reason,
)
from crmctl.frozen import frozen

CHUNK = 256 * 1024
TRIES = 4
REFUSALS = 3
"""How often a storage may refuse a fresh address before its refusal counts."""

_STALE = frozenset({400, 401, 403})
"""Statuses of storages for an expired signed address, among others."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_BACKOFF = Backoff(longest=10.0)
_EXCERPT = 200


@frozen
class LocalFile:
    """One file and its path in the bucket."""

    source: Path
    target: str
    size: int
    content_type: str


@frozen
class UploadOutcome:
    """The outcome of one file; `error` is None if it was stored."""

    file: LocalFile
    size: int = 0
    public_url: str | None = None
    error: CrmctlError | None = None


class Uploader:
    """Uploads into one bucket; safe for several threads. `advance` hears of bytes sent, negative after a failed attempt."""

    def __init__(
        self,
        crm: Crm,
        bucket: str,
        clock: Clock,
        *,
        advance: Callable[[int], None],
        warn: Callable[[str], None],
        timeout: float = 60.0,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._crm = crm
        self._bucket = bucket
        self._clock = clock
        self._advance = advance
        self._warn = warn
        self._open_hosts: set[str] = set()
        self._timeout = timeout
        self._random = random
        self._ended: CrmctlError | None = None

    def upload_all(self, files: Sequence[LocalFile], concurrency: int) -> list[UploadOutcome]:
        """Return the outcome of every file, in order. An error about the key ends the other uploads too."""
        with ThreadPoolExecutor(max_workers=max(1, min(concurrency, len(files)))) as pool:
            try:
                return list(pool.map(self._outcome, files))
            except BaseException:
                self._ended = InterruptedByUser("interrupted")
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _outcome(self, file: LocalFile) -> UploadOutcome:
        if self._ended is not None:
            return UploadOutcome(file, error=self._ended)
        try:
            return self._stored(file)
        except CrmctlError as error:
            if isinstance(error, DeniedError | ConfigError):
                self._ended = error
            return UploadOutcome(file, error=error)

    def _stored(self, file: LocalFile) -> UploadOutcome:
        refusals = 0
        for attempt in range(1, TRIES + 1):
            place = self._crm.upload_url(file.target, self._bucket)
            address = self._address(place.signed_url)
            failed: CrmctlError
            wait: float | None = None
            try:
                size, answer = self._put(file, address)
            except NetworkError as error:
                if not error.retryable:
                    raise
                failed = error
            else:
                if answer.ok:
                    return UploadOutcome(file, size, place.public_url)
                refusals += answer.status in _STALE
                failed = _refused(answer, address)
                if answer.status not in _PASSING and not (answer.status in _STALE and refusals < REFUSALS):
                    raise failed
                wait = 0.0 if answer.status in _STALE else retry_after(answer.headers, self._clock.now())
            if attempt == TRIES:
                raise failed
            self._clock.sleep(_BACKOFF.gap(attempt, self._random) if wait is None else min(wait, _BACKOFF.longest))
        raise AssertionError("every try returns or raises")

    def _put(self, file: LocalFile, address: str) -> tuple[int, Answer]:
        sent: list[int] = []
        done = False
        try:
            with file.source.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                content = self._content(file, stream.fileno(), size, sent)
                answer = self._crm.session.upload(address, content, size, file.content_type, self._timeout)
            done = answer.ok
            return size, answer
        except OSError as error:
            raise RejectedError(f"{file.source} cannot be read: {reason(error)}", code="unreadable_file") from error
        finally:
            if not done:
                self._advance(-sum(sent))

    def _content(self, file: LocalFile, descriptor: int, size: int, sent: list[int]) -> Iterator[bytes]:
        """Yield the bytes of the file, and count them in `sent`.

        A change meanwhile is noticed before the last byte is sent, so that no mixture is stored.
        """
        before = os.fstat(descriptor)
        bytes_left = size
        while bytes_left:
            chunk = os.read(descriptor, min(CHUNK, bytes_left))
            bytes_left -= len(chunk)
            after = os.fstat(descriptor)
            if not chunk or (bytes_left == 0 and (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)):
                raise RejectedError(f"{file.source} changed while it was read", code="file_changed", hint="upload it again")
            if self._ended is not None:
                raise self._ended
            yield chunk
            sent.append(len(chunk))
            self._advance(len(chunk))

    def _address(self, signed: str) -> str:
        address = urljoin(f"{self._crm.session.base_url}/", signed)
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise ServiceError("the service gave an upload address that cannot be called", code="unreadable_answer")
        host = urlsplit(address).hostname or ""
        if address.startswith("http:") and not is_loopback(address) and host not in self._open_hosts:
            self._open_hosts.add(host)
            self._warn(f"the files travel to {host} unencrypted: its address is http://")
        return address


def download(session: Session, address: str, take: Callable[[bytes], object], timeout: float) -> Mapping[str, str]:
    """Pass the content of a public address to `take`, without sending the key. Return the headers of the answer.

    Raises NotFoundError, NetworkError, and the storage's refusal.
    """
    response = session.transport.download(address, take, timeout)
    if response.status == 404:
        raise NotFoundError(f"there is no file at {address}", status=404)
    if response.status != 200:
        raise _refused(Answer(response.status, response.headers, response.body), address, "a download")
    return response.headers


def _refused(answer: Answer, address: str, action: str = "an upload") -> CrmctlError:
    """Return the storage's refusal with its host and words, never the signed address."""
    words = _words(answer, address)
    host = urlsplit(address).netloc.rpartition("@")[2]
    text = f"the storage at {host} answered {answer.status}{f': {words}' if words else ''}"
    if 300 <= answer.status < 400:
        return ServiceError(f"{text}; {action} follows no redirect", code="redirected", status=answer.status)
    if answer.status >= 500:
        return ServiceError(text, code="storage_failed", status=answer.status, retryable=answer.status in _PASSING)
    return RejectedError(text, code="storage_refused", status=answer.status)


def _words(answer: Answer, address: str) -> str:
    """Return code and message of an XML, JSON or other error, without parts of the signed address."""
    text = answer.content[: _EXCERPT * 20].decode("utf-8", "replace")
    named = [element[1] for tag in ("Code", "Message") if (element := re.search(rf"<{tag}>([^<]*)</{tag}>", text))]
    if not named:
        code, message, _ = explanation(answer)
        named = list(dict.fromkeys(filter(None, (code, message))))
    text = " ".join(unescape(": ".join(named)).split())
    parts = urlsplit(address)
    secrets = {address, parts.path, parts.query, *(value for pair in parts.query.split("&") if len(value := pair.partition("=")[2]) > 5)}
    for secret in sorted((secret for secret in secrets if len(secret) > 1), key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return text[:_EXCERPT]


UNKNOWN = "application/octet-stream"

_NAMES = {
    "jsonl": "application/x-ndjson",
    "md": "text/markdown",
    "xml": "application/xml",
    "ics": "text/calendar",
    "vcf": "text/vcard",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "msg": "application/vnd.ms-outlook",
    "webp": "image/webp",
    "gz": "application/gzip",
}
"""Media types that the library lacks or names differently."""

_TYPES = mimetypes.MimeTypes(filenames=())  # without this machine's configuration


def content_type(name: str) -> str:
    """Return the media type that a file's name tells."""
    extension = PurePath(name).suffix.lower().removeprefix(".")
    return _NAMES.get(extension) or _TYPES.guess_type(f"x.{extension}")[0] or UNKNOWN
