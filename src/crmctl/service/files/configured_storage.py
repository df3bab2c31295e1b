"""The one place that chooses where uploaded files go."""

from __future__ import annotations

from crmctl.service.files.local import LocalStorage
from crmctl.service.files.s3 import S3Storage
from crmctl.service.files.storage import Storage
from crmctl.service.settings import ServiceSettings


def open_storage(settings: ServiceSettings) -> Storage:
    """S3 where it is configured, else the data directory. Raises UsageError, ConfigError."""
    if settings.files_s3 is not None:
        return S3Storage(settings.files_s3)
    return LocalStorage(settings.address, settings.file_limit)
