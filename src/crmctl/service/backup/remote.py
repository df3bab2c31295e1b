"""A backup's place in an S3-compatible storage: written whole or not at all, and read back."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from crmctl.errors import ServiceError, UsageError, reason
from crmctl.service.files.s3 import open_client
from crmctl.service.settings import S3Settings

CHUNK = 1024 * 1024


class RemotePlace:
    """`s3://BUCKET/KEY`, with the credentials, the region and the endpoint that the AWS tools would use."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for an address that names no object, and what open_client raises."""
        parts = urlsplit(url)
        self.bucket, self.key = parts.netloc, parts.path.lstrip("/")
        if not self.bucket or not self.key or self.key.endswith("/"):
            raise UsageError(f"{url} names no object", hint="s3://BUCKET/NAME")
        self.url = url
        self._client, self._failures = open_client(S3Settings())

    def put(self, path: Path) -> None:
        """Under its name there is nothing, or what was there, until all of it has arrived. Raises ServiceError."""
        try:
            self._drop_unfinished()
            self._client.upload_file(str(path), self.bucket, self.key)
            body = self._client.get_object(Bucket=self.bucket, Key=self.key)["Body"]
            stored = hashlib.sha256()
            for piece in iter(lambda: body.read(CHUNK), b""):
                stored.update(piece)
        except self._errors() as error:
            raise ServiceError(f"cannot write {self.url}: {reason(error)}", hint="the bucket must exist and be writable") from error
        with path.open("rb") as file:
            if stored.digest() != hashlib.file_digest(file, "sha256").digest():
                raise ServiceError(f"what {self.url} gives back is not what was written")

    def _drop_unfinished(self) -> None:
        """Parts of a killed backup of this name take room that nobody sees. Who may not list them has a rule of the bucket."""
        with contextlib.suppress(*self._failures):
            for each in self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=self.key).get("Uploads", []):
                if each["Key"] == self.key:
                    self._client.abort_multipart_upload(Bucket=self.bucket, Key=self.key, UploadId=each["UploadId"])

    def get(self, path: Path) -> None:
        """Raises ServiceError."""
        try:
            self._client.download_file(self.bucket, self.key, str(path))
        except self._errors() as error:
            raise ServiceError(f"cannot read {self.url}: {reason(error)}") from error

    def _errors(self) -> tuple[type[Exception], ...]:
        from boto3.exceptions import Boto3Error  # type: ignore[import-untyped]

        return (*self._failures, Boto3Error)
