"""What a client of the Python API stands on: settings, key and connections, each made when it is first needed."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from crmctl.bulk.context import Listener
from crmctl.bulk.findings import Finding
from crmctl.client.connect import connect
from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential, check_key, require_credential
from crmctl.config.paths import Paths
from crmctl.config.settings import Flags, Settings, load_settings
from crmctl.errors import UsageError

LOG = logging.getLogger("crmctl")


class _NoProgress:
    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None:
        LOG.debug("%s", label)

    def advance(self, count: int = 1, /) -> None:
        pass

    def tally(self, counts: Mapping[str, int], /) -> None:
        pass

    def note(self, text: str) -> None:
        LOG.info("%s", text)

    def finish(self) -> None:
        pass


class LogListener:
    """Notes go to the logger `crmctl`, findings are in the results, and what would be replaced stays."""

    def __init__(self) -> None:
        self.progress = _NoProgress()

    def note(self, text: str) -> None:
        LOG.info("%s", text)

    def report(self, finding: Finding) -> None:
        LOG.debug("%s", finding.to_text())

    def confirm(self, question: str) -> None:
        raise UsageError(f"{question}? Nobody was asked", hint="give a listener whose confirm agrees", code="not_confirmed")


class ClientContext:
    """The `BulkContext` of a client. `given` are profile, base URL and key, each None where the environment and the files decide."""

    def __init__(self, environ: Mapping[str, str], given: tuple[str | None, str | None, str | None], listener: Listener) -> None:
        self._environ = environ
        self._profile, self._base_url, self._key = given
        self.listener = listener
        self.clock: Clock = SystemClock()
        self._open: list[Crm] = []

    @cached_property
    def paths(self) -> Paths:
        return Paths.from_environment(self._environ)

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self._environ, Flags(profile=self._profile, base_url=self._base_url), self.paths)

    @cached_property
    def service(self) -> Crm:
        return self._connect("bulk")

    @cached_property
    def crm(self) -> Crm:
        return self._connect("interactive")

    @cached_property
    def directory(self) -> Directory:
        return Directory(self.crm, self.paths.cache, self.settings.profile.value, self.origin, self.clock)

    @property
    def origin(self) -> str:
        return self.settings.require_origin()

    @property
    def profile(self) -> str:
        return self.settings.profile.value

    @property
    def state(self) -> Path:
        return self.paths.state

    @property
    def stdin(self) -> BinaryIO:
        buffer: BinaryIO = getattr(sys.stdin, "buffer", None) or io.BytesIO()
        return buffer

    def guard_write(self) -> None:
        """Every write passes here before its first request. Raises UsageError where the settings do not allow it."""
        settings = self.settings
        if settings.read_only.value:
            source = settings.read_only.source
            raise UsageError(f"writes are refused: read-only is set ({source})", hint=f"unset {source} to write", code="read_only")
        if settings.protected.value:
            name = settings.profile.value
            raise UsageError(
                f"the profile {name!r} is protected: writes need its name typed on a terminal",
                hint=f"lift the protection: crmctl config unset protected --profile {name}",
                code="protected_profile",
            )

    def close(self) -> None:
        for name in ("service", "crm", "directory"):
            self.__dict__.pop(name, None)
        while self._open:
            self._open.pop().session.close()

    def _connect(self, lane: str) -> Crm:
        settings = self.settings
        key = check_key(self._key) if self._key is not None else None
        credential = Credential(key, "api_key", self.origin) if key else require_credential(settings, self._environ, self.paths)
        for warning in settings.warnings if not self._open else ():
            LOG.warning("%s", warning)
        crm = connect(settings, credential, self.paths, clock=self.clock, note=self.listener.note, lane=lane)
        self._open.append(crm)
        return crm
