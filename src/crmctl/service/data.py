"""The data of a service, for whoever serves it and for whoever administers it: needs nothing of the web."""

from __future__ import annotations

import os
import time

from crmctl.clock import Clock
from crmctl.errors import ConfigError, storage_error
from crmctl.service.context import Ids
from crmctl.service.faults import Unavailable
from crmctl.service.settings import DATABASE_FILE, FILES_FOLDER, UNFINISHED, ServiceSettings
from crmctl.service.store import organisation
from crmctl.service.store.engine import Engine, has_data, open_engine

_VARIANT = dict(zip("0123456789abcdef", 4 * "89ab", strict=True))


def new_id() -> str:
    """A UUID of version 7: it begins with the time, so that the entries of new records stand together in every index of ids, and the rest
    is random."""
    text = f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
    return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-{_VARIANT[text[15]]}{text[16:19]}-{text[20:32]}"


def open_data(settings: ServiceSettings, clock: Clock, ids: Ids = new_id) -> Engine:
    """The data a service works on, created and its organisation set up where that is not done yet.

    Raises StorageError where the disk is full or failed, and ConfigError, also where a restore has begun and the database is not there yet:
    a new one would stand beside files of the old.
    """
    if (begun := next(settings.data_dir.glob(UNFINISHED), None)) and not has_data(settings.engine_url):
        hint = f"give crmctl service restore again; to begin with nothing, delete {begun} and {settings.data_dir / FILES_FOLDER}"
        raise ConfigError(f"a restore into {settings.data_dir} is not finished", hint=hint)
    engine = None
    try:
        engine = open_engine(settings.engine_url)
        engine.write(lambda tx: organisation.initialise(tx, ids=ids, now=clock.now()))
    except BaseException as error:
        if engine is not None:
            engine.close()
        cause = error.__cause__ if type(error) is Unavailable else error
        if isinstance(cause, Exception) and (failed := storage_error(cause, settings.data_dir / DATABASE_FILE)) is not None:
            raise failed from error
        raise
    return engine
