"""What every request of one running service shares. A plain bundle: no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crmctl.clock import Clock
from crmctl.service.settings import ServiceSettings
from crmctl.service.store.engine import Engine

Ids = Callable[[], str]
"""Makes a new identifier: a UUIDv4 string."""


@dataclass(frozen=True)
class Context:
    settings: ServiceSettings
    engine: Engine
    clock: Clock
    ids: Ids
