"""The data of an embedded service, opened by commands that administer it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crmctl.cli.commands.serve import data_directory, service_libraries
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, ServiceError, UsageError
from crmctl.service import faults
from crmctl.service.context import DATABASE_FILE, ServiceSettings, open_data
from crmctl.service.store.engine import rehearse
from crmctl.service.store.logs import OPERATOR

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.service.store.engine import Engine
    from crmctl.service.store.tx import Tx

T = TypeVar("T")


def settings_for(runtime: Runtime, data: Path | None, database_url: str | None) -> ServiceSettings:
    return ServiceSettings(data_dir=data_directory(runtime, data), database_url=database_url)


def require_data(settings: ServiceSettings) -> None:
    """Raise UsageError if there is no data of a service."""
    if settings.database_url is None and not (settings.data_dir / DATABASE_FILE).exists():
        raise UsageError(f"there is no service's data in {settings.data_dir}", hint="--data DIR, as crmctl serve was given it")


@contextlib.contextmanager
def opened(runtime: Runtime, data: Path | None, database_url: str | None, *, writes: bool = False) -> Iterator[Engine]:
    """Open a service's data. Its faults become errors of the command line.

    It is set up if it is new; only a directory that the user named for reading must exist. With `writes`, CRMCTL_READ_ONLY applies; a
    protected profile does not, because it protects its own service.
    """
    if writes:
        runtime.guard_read_only()
    settings = settings_for(runtime, data, database_url)
    if data is not None and not writes:
        require_data(settings)
    try:
        with service_libraries(), contextlib.closing(open_data(settings, runtime.clock)) as engine:
            yield engine
    except faults.Fault as fault:
        kinds: dict[type[faults.Fault], type[CrmctlError]] = {faults.NotFound: NotFoundError, faults.Unavailable: ServiceError}
        raise kinds.get(type(fault), RejectedError)(fault.message, code=fault.error, details=fault.details) from fault


def write(runtime: Runtime, engine: Engine, work: Callable[[Tx], T]) -> T:
    """Do the work, or with --dry-run roll it back."""
    return rehearse(engine, work, by=OPERATOR) if runtime.dry_run else engine.write(work, by=OPERATOR)
