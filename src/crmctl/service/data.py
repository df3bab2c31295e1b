"""The data of a service, for whoever serves it and for whoever administers it: needs nothing of the web."""

from __future__ import annotations

import uuid

from crmctl.clock import Clock
from crmctl.service.context import Ids
from crmctl.service.settings import ServiceSettings
from crmctl.service.store import organisation
from crmctl.service.store.engine import Engine, open_engine


def new_id() -> str:
    return str(uuid.uuid4())


def open_data(settings: ServiceSettings, clock: Clock, ids: Ids = new_id) -> Engine:
    """The data a service works on, created and its organisation set up where that is not done yet. Raises ConfigError."""
    engine = open_engine(settings.engine_url)
    try:
        engine.write(lambda tx: organisation.initialise(tx, ids=ids, now=clock.now()))
    except BaseException:
        engine.close()
        raise
    return engine
