"""What bulk work needs from outside, in one object: the service, the clock, the user's directories, and who hears what happens."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from crmctl.bulk.findings import Finding
from crmctl.bulk.progress import Progress
from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.clock import Clock


class Listener(Protocol):
    """Hears what happens while a use case runs. Nothing that it hears is missing from the result, but for notes and progress."""

    @property
    def progress(self) -> Progress: ...

    def note(self, text: str) -> None:
        """Something worth knowing, in one sentence."""
        ...

    def report(self, finding: Finding) -> None:
        """Something wrong, or odd, with one row or the whole file."""
        ...

    def confirm(self, question: str) -> None:
        """Something would be lost; the question has no question mark. Raises CrmctlError to leave it as it is."""
        ...


class BulkContext(Protocol):
    """Every part may be made when it is first asked for: a use case that needs no service does not ask for one."""

    @property
    def service(self) -> Crm:
        """The service on the lane of bulk work, which leaves a few requests of the rate budget to people who wait."""
        ...

    @property
    def crm(self) -> Crm:
        """The service on the lane of people."""
        ...

    @property
    def directory(self) -> Directory: ...

    @property
    def origin(self) -> str:
        """Scheme, host and port of the service; jobs and plans belong to one."""
        ...

    @property
    def profile(self) -> str: ...

    @property
    def state(self) -> Path:
        """The directory of jobs and of what exports remember."""
        ...

    @property
    def stdin(self) -> BinaryIO: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def listener(self) -> Listener: ...
