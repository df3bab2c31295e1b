"""Uploads straight to an S3-compatible storage: addresses signed by boto3, with the credentials it finds. The only importer of boto3."""

from __future__ import annotations

import os
import re
from typing import Any

from crmctl.errors import ConfigError, UsageError, reason
from crmctl.service.faults import Unavailable
from crmctl.service.files.storage import UPLOAD_SECONDS, Upload
from crmctl.service.settings import S3Settings
from crmctl.service.store.checks import invalid
from crmctl.service.store.tx import Tx

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


def open_client(settings: S3Settings) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client, and what its calls raise. Raises UsageError without boto3, ConfigError where its settings do not make a client."""
    try:
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise UsageError(
            f"storing files in S3 is not installed ({error.name} is missing)", hint="pip install 'crmctl[s3]'", code="not_installed"
        ) from error
    failures = (BotoCoreError, ClientError, ValueError)
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
                # A checksum in the signature would have to be sent by the client, which knows of none.
                request_checksum_calculation="when_required",
            ),
        )
    except failures as error:
        raise ConfigError(f"S3 cannot be used: {reason(error)}", hint="--files-s3-endpoint URL, --files-s3-region REGION") from error
    return client, failures


class S3Storage:
    """Raises what open_client raises."""

    def __init__(self, settings: S3Settings) -> None:
        self._prefix = settings.prefix
        self._client, self._failure = open_client(settings)

    def upload_url(self, tx: Tx, bucket: str, path: str, *, now: float) -> Upload:
        name = self._prefix + bucket
        if not _BUCKET.fullmatch(name):
            raise invalid("bucket", "must consist of lower-case letters, digits, dots and hyphens")
        try:
            signed_url = self._client.generate_presigned_url(
                "put_object", Params={"Bucket": name, "Key": path}, ExpiresIn=UPLOAD_SECONDS, HttpMethod="PUT"
            )
        except self._failure as error:
            raise Unavailable(f"the storage gave no upload address: {type(error).__name__}") from error
        return Upload(signed_url, signed_url.partition("?")[0])
