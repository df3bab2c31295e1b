"""Files to signed addresses: streamed, several at once, repeated with a fresh address where that can help. Knows no terminal.

Storing the same bytes under the same path twice is storing them once, so any try may be repeated.
"""

from __future__ import annotations

import os
import random as randomness
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from crmctl.backoff import Backoff
from crmctl.client.crm import Crm
from crmctl.client.http.answers import Answer, explanation
from crmctl.client.http.retry import retry_after
from crmctl.client.http.transport import UploadBody
from crmctl.clock import Clock
from crmctl.config.keys import is_loopback
from crmctl.errors import ConfigError, CrmctlError, DeniedError, InterruptedByUser, NetworkError, RejectedError, ServiceError, reason

CHUNK = 256 * 1024
TRIES = 4
REFUSALS = 3
"""How often a storage may refuse a fresh address before it is believed."""

_STALE = frozenset({400, 401, 403})
"""What storages answer when a signed address has expired, among other things."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_BACKOFF = Backoff(longest=10.0)
_EXCERPT = 200


@dataclass(frozen=True)
class LocalFile:
    """One file and the path it gets in the bucket."""

    source: Path
    target: str
    size: int
    content_type: str


@dataclass(frozen=True)
class UploadOutcome:
    """What became of one file: stored, `error` None, or not."""

    file: LocalFile
    size: int = 0
    public_url: str | None = None
    error: CrmctlError | None = None


class Uploader:
    """Uploads into one bucket; safe for several threads. `advance` hears of bytes that left, of fewer than none when a try was in vain."""

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
        """The outcome of every file, in the given order. What refuses one file for reasons of the key ends the others, too."""
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
        except (DeniedError, ConfigError) as error:
            self._ended = error
            return UploadOutcome(file, error=error)
        except CrmctlError as error:
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
        sent = 0

        def count(length: int) -> None:
            nonlocal sent
            sent += length
            self._advance(length)

        done = False
        try:
            with file.source.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                content = self._content(file, stream.fileno(), size)
                answer = self._crm.upload(UploadBody(address, content, size, file.content_type, self._timeout, count))
            done = answer.ok
            return size, answer
        except OSError as error:
            raise RejectedError(f"{file.source} cannot be read: {reason(error)}", code="unreadable_file") from error
        finally:
            if not done:
                self._advance(-sent)

    def _content(self, file: LocalFile, descriptor: int, size: int) -> Iterator[bytes]:
        """The bytes of the file. One that changes meanwhile is noticed before its last byte leaves, so that nothing mixed is stored."""
        before = os.fstat(descriptor)
        left = size
        while left:
            chunk = os.read(descriptor, min(CHUNK, left))
            left -= len(chunk)
            after = os.fstat(descriptor)
            if not chunk or (left == 0 and (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns)):
                raise RejectedError(f"{file.source} changed while it was read", code="file_changed", hint="upload it again")
            if self._ended is not None:
                raise self._ended
            yield chunk

    def _address(self, signed: str) -> str:
        address = urljoin(f"{self._crm.session.base_url}/", signed)
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise ServiceError("the service gave an upload address that cannot be called", code="unreadable_answer")
        host = urlsplit(address).hostname or ""
        if address.startswith("http:") and not is_loopback(address) and host not in self._open_hosts:
            self._open_hosts.add(host)
            self._warn(f"the files travel to {host} unencrypted: its address is http://")
        return address


def _refused(answer: Answer, address: str) -> CrmctlError:
    """The storage's refusal: its host and its own words, never the signed address."""
    said = _words(answer, address)
    host = urlsplit(address).netloc.rpartition("@")[2]
    text = f"the storage at {host} answered {answer.status}{f': {said}' if said else ''}"
    if 300 <= answer.status < 400:
        return ServiceError(f"{text}; an upload follows no redirect", code="redirected", status=answer.status)
    if answer.status >= 500:
        return ServiceError(text, code="storage_failed", status=answer.status, retryable=answer.status in _PASSING)
    return RejectedError(text, code="storage_refused", status=answer.status)


def _words(answer: Answer, address: str) -> str:
    """Code and message of an XML, JSON or other error, without anything of the signed address."""
    text = answer.content[: _EXCERPT * 20].decode("utf-8", "replace")
    named = [found[1] for tag in ("Code", "Message") if (found := re.search(rf"<{tag}>([^<]*)</{tag}>", text))]
    if not named:
        code, message, _ = explanation(answer)
        named = list(dict.fromkeys(filter(None, (code, message))))
    text = " ".join(unescape(": ".join(named)).split())
    parts = urlsplit(address)
    secrets = {address, parts.path, parts.query, *(value for pair in parts.query.split("&") if len(value := pair.partition("=")[2]) > 5)}
    for secret in sorted((secret for secret in secrets if len(secret) > 1), key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return text[:_EXCERPT]
