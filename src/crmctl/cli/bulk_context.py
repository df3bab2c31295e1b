"""What a bulk use case needs from outside, given by a runtime: its clients, its directories, and the screen as who hears what happens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from crmctl.bulk.findings import Finding
    from crmctl.cli.runtime import Runtime
    from crmctl.client.crm import Crm
    from crmctl.client.directory import Directory
    from crmctl.clock import Clock
    from crmctl.output.progress import ProgressDisplay


class ScreenListener:
    """Shows notes and progress at once; findings are shown when the outcome is."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def progress(self) -> ProgressDisplay:
        return self._runtime.progress

    def note(self, text: str) -> None:
        self._runtime.messages.note(text)

    def report(self, finding: Finding) -> None:
        pass

    def confirm(self, question: str) -> None:
        self._runtime.confirm(question)


class PreviewListener(ScreenListener):
    """Of a dry run that keeps a file: its place may hold another one, and only --yes says that this is agreed."""

    def confirm(self, question: str) -> None:
        if not self._runtime.assume_yes:
            self._runtime.prompter.confirm(f"{question}?")


class ReportListener(PreviewListener):
    """Of a dry run whose findings all go into a report."""

    def __init__(self, runtime: Runtime, hear: Callable[[Finding], None]) -> None:
        super().__init__(runtime)
        self._hear = hear

    def report(self, finding: Finding) -> None:
        self._hear(finding)


class StillListener(ScreenListener):
    """Of work that is over at once: there is no progress to show, but for a remark that it is not."""

    @cached_property
    def progress(self) -> ProgressDisplay:
        from crmctl.output.progress import ProgressDisplay

        runtime = self._runtime
        return ProgressDisplay(runtime.streams, quiet=runtime.progress.quiet, still=True, say=runtime.messages.progress)


class RuntimeContext:
    """The `BulkContext` of a command."""

    def __init__(self, runtime: Runtime, listener: ScreenListener | None = None) -> None:
        self._runtime = runtime
        self.listener = listener or ScreenListener(runtime)

    @cached_property
    def service(self) -> Crm:
        return self._runtime.connect(lane="bulk")

    @property
    def crm(self) -> Crm:
        return self._runtime.crm

    @property
    def directory(self) -> Directory:
        return self._runtime.directory

    @property
    def origin(self) -> str:
        return self._runtime.settings.require_origin()

    @property
    def profile(self) -> str:
        return self._runtime.settings.profile.value

    @property
    def state(self) -> Path:
        return self._runtime.paths.state

    @property
    def stdin(self) -> BinaryIO:
        buffer: BinaryIO = self._runtime.streams.stdin.buffer
        return buffer

    @property
    def clock(self) -> Clock:
        return self._runtime.clock


class WaitingContext(RuntimeContext):
    """Of a command for whose few requests a person waits: on their lane, and on the connection that is there."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, StillListener(runtime))

    @cached_property
    def service(self) -> Crm:
        return self.crm
