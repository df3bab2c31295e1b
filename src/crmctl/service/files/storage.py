"""Store uploaded files on disk or in S3."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import hmac
import math
import os
import re
import secrets
import threading
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from crmctl.errors import ConfigError, UsageError, install_command, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.service.context import FILES_FOLDER, S3Settings, ServiceSettings
from crmctl.service.faults import BadRequest, Forbidden, OverQuota, Unavailable
from crmctl.service.store.keys import UPLOADS, is_used, sign, use_once
from crmctl.service.store.record_tables import invalid
from crmctl.service.store.tx import Tx, to_micros, to_wire

UPLOAD_SECONDS = 900
"""How long an upload to a signed address may begin."""


def public_url(settings: ServiceSettings, bucket: str, path: str) -> str:
    return f"{settings.address}/files/{quote(bucket)}/{quote(path)}"


def local_upload_url(settings: ServiceSettings, tx: Tx, bucket: str, path: str, *, now: float) -> tuple[str, str]:
    """Return an address that takes one PUT without a key, and the address of the file afterwards."""
    expires, limit, nonce = int(now) + UPLOAD_SECONDS, settings.file_limit, secrets.token_hex(8)
    signature = sign(tx, UPLOADS, bucket, path, expires, limit, nonce)
    url = public_url(settings, bucket, path)
    return f"{url}?expires={expires}&limit={limit}&nonce={nonce}&signature={signature}", url


@frozen
class Permit:
    """A valid signature: what may be PUT, of at most `limit` bytes. `expires` in Unix seconds."""

    signature: str
    expires: int
    limit: int


def read_permit(tx: Tx, bucket: str, path: str, query: Mapping[str, str], *, now: float) -> Permit:
    """Read the signature of an upload address. Raises Forbidden when it does not allow a PUT at this place now."""
    expires, limit, nonce = query.get("expires", ""), query.get("limit", ""), query.get("nonce", "")
    if not (re.fullmatch("[0-9]{1,12}", expires, re.ASCII) and re.fullmatch("[0-9]{1,15}", limit, re.ASCII)):
        raise Forbidden("this address is not signed for an upload", error="invalid_signature")
    expected = sign(tx, UPLOADS, bucket, path, int(expires), int(limit), nonce)
    if not hmac.compare_digest(expected.encode(), query.get("signature", "").encode(errors="replace")):
        raise Forbidden("the signature does not fit this address", error="invalid_signature")
    if now >= int(expires):
        raise Forbidden("this upload address has expired; ask for a new one", error="expired_signature")
    if is_used(tx, expected):
        raise used_permit()
    return Permit(expected, int(expires), int(limit))


def use_permit(tx: Tx, permit: Permit, *, now: float) -> None:
    """Note the one upload of an address. Raises Forbidden when another one came first."""
    if not use_once(tx, permit.signature, permit.expires, now=now):
        raise used_permit()


def used_permit() -> Forbidden:
    return Forbidden("this upload address was used; ask for a new one", error="used_signature")


_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


def open_client(settings: S3Settings) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return an S3 client and the errors of its calls. Raises UsageError without boto3, ConfigError for settings that do not work."""
    try:
        import boto3  # type: ignore[import-untyped]
        from boto3.exceptions import Boto3Error  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise UsageError(
            f"storing files in S3 is not installed ({error.name} is missing)", hint=install_command("s3"), code="not_installed"
        ) from error
    failures = (BotoCoreError, ClientError, Boto3Error, ValueError)
    endpoint = settings.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    try:
        session = boto3.session.Session()
        if session.get_credentials() is None:
            raise ConfigError("there are no credentials for S3", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
        client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=settings.region or session.region_name or "us-east-1",
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path" if endpoint else "auto"},
                # Clients do not send the checksum that the signature would demand.
                request_checksum_calculation="when_required",
            ),
        )
    except failures as error:
        raise ConfigError(f"S3 cannot be used: {reason(error)}", hint="--files-s3-endpoint URL, --files-s3-region REGION") from error
    return client, failures


UploadUrl = Callable[..., tuple[str, str]]
"""Takes `(tx, bucket, path, now=)`."""


@cache
def open_storage(settings: ServiceSettings) -> UploadUrl:
    """Return the function that signs uploads to S3 if it is configured, else to the data directory. Raises what open_client raises."""
    if (s3 := settings.files_s3) is None:
        return partial(local_upload_url, settings)
    client, failures = open_client(s3)

    def upload_url(_tx: Tx, bucket: str, path: str, **_: float) -> tuple[str, str]:
        """Return an address that takes a PUT without a key, and the address of the file. Raises BadRequest, Unavailable."""
        name = s3.prefix + bucket
        if not _BUCKET.fullmatch(name):
            raise invalid("bucket", "must consist of lower-case letters, digits, dots and hyphens")
        try:
            signed_url = client.generate_presigned_url(
                "put_object", Params={"Bucket": name, "Key": path}, ExpiresIn=UPLOAD_SECONDS, HttpMethod="PUT"
            )
        except failures as error:
            raise Unavailable(f"the storage gave no upload address: {reason(error)}") from error
        return signed_url, signed_url.partition("?")[0]

    return upload_url


CHUNK = 256 * 1024
ABANDONED_SECONDS = 24 * 3600.0
"""Age at which an unfinished upload belongs to a killed process."""

COUNT_SECONDS = 10.0
"""How often files are counted, which other processes add and remove too."""


class Room:
    """Bytes of all files in one folder, and of those that this process is writing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stored = self._reserved = 0
        self._counted_at = -math.inf

    def reserve(self, count: int, most: int) -> None:
        """Reserve so many bytes. Raises OverQuota when all files together would have more than `most`."""
        with self._lock:
            if time.monotonic() - self._counted_at >= COUNT_SECONDS:
                self._stored = sum(_size(file) for file in self._folder.glob("??/*"))
                self._counted_at = time.monotonic()
            if self._stored + self._reserved + count > most:
                raise OverQuota(f"all uploaded files together would be over the quota of {size_text(most)}", {"limit": most})
            self._reserved += count

    def release(self, reserved: int, stored: int = 0) -> None:
        """Give reserved bytes back, of which so many more are stored now."""
        with self._lock:
            self._reserved -= reserved
            self._stored += stored


room_in = cache(Room)


class Incoming:
    """A file being written. It appears with `finish`; closed without that, it disappears."""

    def __init__(self, place: Path, folder: Path, heading: bytes, declared: int, most: int) -> None:
        self._place = place
        self._most, self._room = most, room_in(folder.parent)
        self._written = self._reserved = 0
        self._partial = folder / f"{uuid.uuid4()}.part"
        self._file = open(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")  # noqa: PTH123, SIM115
        try:
            self._reserve(declared)
        except OverQuota:
            self.close()
            raise
        self._file.write(heading)

    def write(self, data: bytes) -> None:
        """Raises OverQuota, OSError."""
        self._written += len(data)
        self._reserve(self._written)
        self._file.write(data)

    def _reserve(self, size: int) -> None:
        more = max(0, size - self._reserved)
        self._room.reserve(more, self._most)
        self._reserved += more

    def finish(self, permit: Callable[[], None] = lambda: None) -> None:
        """Put the file in its place, replacing what was there; it is on disk when this returns.

        Calls `permit`, which may raise to refuse the file, when there is room for it and before it appears.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._place.parent.mkdir(mode=0o700, exist_ok=True)
        permit()
        replaced = _size(self._place)
        self._partial.replace(self._place)
        self._room.release(self._reserved, _size(self._place) - replaced)
        self._reserved = 0
        sync_folder(self._place.parent)

    def close(self) -> None:
        """Give the file up unless it is finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._room.release(self._reserved)
        self._reserved = 0
        self._partial.unlink(missing_ok=True)


def read_pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in pieces, then close it."""
    with file:
        yield from iter(lambda: file.read(CHUNK), b"")


@frozen
class Stored:
    """A file opened for reading, at the place after its heading: `size` without that, `version` of this upload."""

    file: BinaryIO
    content_type: str
    size: int
    version: str


class Disk:
    """Uploaded files below one folder, which the first one creates. `most` is the quota of all files in bytes."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most

    def receive(self, bucket: str, path: str, content_type: str, size: int = 0) -> Incoming:
        """Begin to write a file of `size` bytes, 0 when unknown. Raises OverQuota, OSError."""
        incoming = self._folder / "incoming"
        for folder in (self._folder, incoming):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        heading = jsontext.dumps({"bucket": bucket, "path": path, "contentType": content_type})
        return Incoming(self._place(bucket, path), incoming, heading.encode() + b"\n", size, self._most)

    def open(self, bucket: str, path: str) -> Stored | None:
        """Open a file for reading, or return None."""
        try:
            file = self._place(bucket, path).open("rb")
        except FileNotFoundError:
            return None
        heading = file.readline()
        status = os.fstat(file.fileno())
        version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
        return Stored(file, jsontext.loads(heading.decode())["contentType"], status.st_size - len(heading), version)

    def sweep(self) -> None:
        """Remove the unfinished uploads of killed processes, and close a folder that others may read."""
        with contextlib.suppress(FileNotFoundError):
            self._folder.chmod(0o700)
        # The machine's clock, which also gives the times of files.
        before = time.time() - ABANDONED_SECONDS
        for unfinished in (self._folder / "incoming").glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if unfinished.stat().st_mtime < before:
                    unfinished.unlink()

    def _place(self, bucket: str, path: str) -> Path:
        name = hashlib.sha256(f"{bucket}/{path}".encode(errors="surrogatepass")).hexdigest()
        return self._folder / name[:2] / name


def disk_of(settings: ServiceSettings) -> Disk:
    return Disk(settings.data_dir / FILES_FOLDER, settings.quotas.files)


def list_files(settings: ServiceSettings, limit: int) -> list[Json]:
    """Return the newest files as `{bucket, path, contentType, size, uploadedAt, publicUrl}`, without those that disappear meanwhile."""
    places = [(place.stat().st_mtime, place) for place in (settings.data_dir / FILES_FOLDER).glob("??/*")]
    entries = list[Json]()
    for changed, place in heapq.nlargest(limit, places):
        with contextlib.suppress(FileNotFoundError), place.open("rb") as file:
            heading = file.readline()
            about = jsontext.loads(heading.decode())
            more = {"size": os.fstat(file.fileno()).st_size - len(heading), "uploadedAt": to_wire(to_micros(changed))}
            entries.append(about | more | {"publicUrl": public_url(settings, about["bucket"], about["path"])})
    return entries


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sync_folder(folder: Path) -> None:
    """Make a new name survive a power failure. Windows does so by itself."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MAX_PATH = 900
"""Most bytes of a path in UTF-8; storages allow 1024 with their prefixes."""

MAX_SEGMENT = 255
BUCKET = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE | re.DOTALL)
"""Names that Windows reserves for devices, with any extension."""


def check_bucket(bucket: str) -> str:
    """Return the bucket. Raises BadRequest for a name that is not allowed."""
    if not re.fullmatch(BUCKET, bucket, re.ASCII) or ".." in bucket:
        raise invalid("bucket", "must be 1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends")
    return bucket


def normalise_path(path: str) -> str:
    """Return the path in composed form (NFC). Raises BadRequest for a path that could mean another place on some system."""
    path = unicodedata.normalize("NFC", path)
    if not path:
        raise _bad_path("must not be empty")
    if _CONTROL.search(path):
        raise _bad_path("must not hold control characters")
    if len(path.encode()) > MAX_PATH:
        raise _bad_path(f"must not be longer than {MAX_PATH} bytes")
    if "\\" in path or path.startswith("/") or re.match(r"[A-Za-z]:", path):
        raise _bad_path("must be relative, with forward slashes")
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            raise _bad_path("must not hold empty parts, . or ..")
        if len(segment.encode()) > MAX_SEGMENT:
            raise _bad_path(f"must not hold a name longer than {MAX_SEGMENT} bytes")
        if segment.endswith((".", " ")) or segment.startswith(" ") or _DEVICE.fullmatch(segment):
            raise _bad_path(f"must not hold the name {segment!r}: some systems reserve it")
    return path


def _bad_path(problem: str) -> BadRequest:
    return BadRequest(f"path {problem}", {"field": "path"})
