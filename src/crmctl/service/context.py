"""What every request of one running service shares. A plain bundle: no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from crmctl.clock import Clock
from crmctl.service.settings import ServiceSettings
from crmctl.service.store.engine import Engine

if TYPE_CHECKING:
    from crmctl.service.http.concurrency import Work

Ids = Callable[[], str]
"""Makes a new identifier: a UUIDv4 string."""


@dataclass(frozen=True)
class Context:
    settings: ServiceSettings
    engine: Engine
    clock: Clock
    ids: Ids

    @cached_property
    def work(self) -> Work:
        """The places for requests. Loaded when requests come: who administers a service needs none."""
        from crmctl.service.http.concurrency import Work

        return Work()
