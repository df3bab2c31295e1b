"""The Python API: a service by profile, environment, or address and key. `from crmctl import Client`."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from crmctl.api.bulk import Bulk
from crmctl.api.client_context import ClientContext, LogListener
from crmctl.api.records import Records
from crmctl.bulk.context import Listener


class Client:
    """One service. Use as a context manager, or call `close`.

    What is not given comes from where the commands find it: CRMCTL_PROFILE, CRMCTL_BASE_URL, CRMCTL_API_KEY, config.toml, stored keys.
    `listener` hears notes, findings and progress of bulk work; without one, notes go to the logger `crmctl`. Nothing is sent and no
    file is read before the first call. Every call may raise the errors of `crmctl.errors`; ConfigError without an address, DeniedError
    without a key.
    """

    def __init__(
        self, profile: str | None = None, base_url: str | None = None, api_key: str | None = None, *, listener: Listener | None = None
    ) -> None:
        self._context = ClientContext(dict(os.environ), (profile, base_url, api_key), listener or LogListener())

    @property
    def bulk(self) -> Bulk:
        """Many records at once: imports, exports, deletions, and the jobs they leave."""
        return Bulk(self._context)

    def records(self, object_name: str) -> Records:
        """The records of one object, given by slug or id."""
        return Records(self._context, object_name)

    def close(self) -> None:
        """Close the connections; a client may be used again afterwards, with new ones."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
