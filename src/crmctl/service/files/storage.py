"""Where uploaded files go: the seam between the endpoint and a storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from crmctl.service.store.tx import Tx

UPLOAD_SECONDS = 900
"""How long a signed address takes an upload to begin."""


@dataclass(frozen=True)
class Upload:
    """`signed_url` takes one kind of request, a PUT, without any key; `public_url` is where the file is then found."""

    signed_url: str
    public_url: str


class Storage(Protocol):
    def upload_url(self, tx: Tx, bucket: str, path: str, *, now: float) -> Upload:
        """Addresses for a file whose names have been checked. Raises BadRequest for names this storage cannot take, Unavailable."""
        ...


def url_path(bucket: str, path: str) -> str:
    """Both names as they stand in an address."""
    return f"{quote(bucket)}/{quote(path)}"
