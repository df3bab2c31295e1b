"""Where the demonstration takes place: real `crmctl` processes in a folder of their own, each command shown before it runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.errors import CrmctlError
from crmctl.models import jsontext
from crmctl.output.streams import Side, Streams

CRMCTL = (sys.executable, "-m", "crmctl")
STOP_SECONDS = 15
WIDTH = 100
"""Columns of what has no terminal."""


@dataclass
class Stage:
    """`side` is the stream that shows everything."""

    folder: Path
    streams: Streams
    side: Side
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def say(self, text: str) -> None:
        """A line or several, as they are."""
        (self.streams.write_out if self.side == "stdout" else self.streams.write_err)(text)

    def title(self, text: str) -> None:
        self.say(f"\n{self.streams.paint(f'# {text}', 'bold', self.side)}\n")

    def show(self, command: tuple[str, ...], then: str = "") -> None:
        self.say(self.streams.paint(f"$ crmctl {shlex.join(command)}{then}", "cyan", self.side) + "\n")

    def run(self, *command: str, given: str = "") -> None:
        """Show and run one command and say what it says. Raises CrmctlError when it fails."""
        self.show(command, " < key.txt" if given else "")
        format_asked = () if "-o" in command else ("-o", "table")
        done = self._finished((*command, *format_asked), given, stderr=subprocess.STDOUT)
        self.say(done.stdout)
        self._expect_success(command, done)

    def ask(self, *command: str) -> Any:
        """Show and run one command; returns its JSON document instead of saying it. Raises CrmctlError when it fails."""
        self.show(command)
        done = self._finished((*command, "-o", "json"), stderr=subprocess.PIPE)
        if done.returncode:
            self.say(done.stderr)
        self._expect_success(command, done)
        return jsontext.loads(done.stdout)

    def pipe(self, command: tuple[str, ...], program: str) -> None:
        """Show and run a command whose stdout goes into a Python one-liner."""
        self.show(command, f" | python -c {shlex.quote(program)}")
        environ = self._environment()
        with subprocess.Popen([*CRMCTL, *command], cwd=self.folder, env=environ, stdout=subprocess.PIPE) as source:  # noqa: S603
            reader = [sys.executable, "-c", program]
            counted = subprocess.run(reader, stdin=source.stdout, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
        self.say(counted.stdout)
        if source.returncode or counted.returncode:
            raise CrmctlError("the pipe failed", hint=counted.stderr.strip().splitlines()[-1] if counted.stderr.strip() else None)

    @contextmanager
    def background(self, *command: str, then: str = "", **environ: str) -> Iterator[subprocess.Popen[str]]:
        """Show a command and run it beside the others; it is told to end at the end."""
        self.show(command, f"{then} &")
        process = subprocess.Popen(  # noqa: S603 - this very program
            [*CRMCTL, *command],
            cwd=self.folder,
            env=self._environment() | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def _finished(self, command: tuple[str, ...], given: str = "", *, stderr: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - this very program
            [*CRMCTL, *command],
            cwd=self.folder,
            env=self._environment(),
            input=given,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            check=False,
        )

    def _expect_success(self, command: tuple[str, ...], done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode:
            raise CrmctlError(f"crmctl {command[0]} {command[1]} ended with {done.returncode}", hint="what it said is above")

    def _environment(self) -> dict[str, str]:
        """The user's own, without their crmctl settings: the demonstration touches nothing of theirs."""
        kept = {name: value for name, value in self.environ.items() if not name.startswith("CRMCTL_")}
        homes = {f"CRMCTL_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        color = {"CLICOLOR_FORCE": "1"} if self.streams.color(self.side) else {"NO_COLOR": "1"}
        network = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return kept | homes | color | network | {"COLUMNS": str(self.streams.width or WIDTH), "PYTHONUTF8": "1"}
