"""Run the installed `crmctl` as a process in the isolated environment of the test; `inprocess` runs commands without a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect

from crmctl.models.jsontext import loads
from tests.support.patience import PATIENCE
from tests.support.warm_program import WarmProcess, WarmProgram, warm_program

CRMCTL = Path(sys.executable).with_name("crmctl")


STARTS = ("PYTHON", "LC_", "LANG", "COVERAGE")
"""Prefixes of variables that Python reads at its start."""

COLD_COMMANDS = (["demo"], ["--version"], ["completion"])
"""Commands that start processes, or import hardly anything."""

SERVICE_COMMANDS = (["serve"], ["service"])
"""Commands that import the service."""


def without_coverage(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without `make coverage`, for processes whose files must not grow or whose imports are checked."""
    return {name: value for name, value in env.items() if not name.startswith("COVERAGE")}


@dataclass(frozen=True)
class Result:
    """The result of a finished run."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the one JSON document on stdout."""
        return loads(self.out)

    def lines(self) -> list[Any]:
        """Return the JSON documents on stdout, one per line (`-o jsonl`)."""
        return [loads(line) for line in self.out.splitlines()]

    def error(self) -> dict[str, Any]:
        """Return the error object of a machine format: the last line of stderr."""
        return loads(self.err.strip().splitlines()[-1])["error"]

    def ok(self) -> Result:
        """Return itself, or fail with the whole output unless the run ended with 0."""
        return self.exits(0)

    def exits(self, code: int) -> Result:
        """Return itself, or fail with the whole output unless the run ended with `code`."""
        assert self.code == code, f"{self.arguments} ended with {self.code}, not {code}\nstdout: {self.out}\nstderr: {self.err}"
        return self


def environment(env: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the test's environment with the changes in `env`; None removes a variable."""
    merged: dict[str, str | None] = {**os.environ, **(env or {})}
    return {name: value for name, value in merged.items() if value is not None}


def run_crmctl(
    *arguments: str | Path,
    env: Mapping[str, str | None] | None = None,
    input: str | bytes | None = None,
    cwd: str | Path | None = None,
    timeout: float = PATIENCE,
) -> Result:
    """Run to the end with pipes for all three streams; stdin is empty unless `input` is given. Text is UTF-8, line ends are kept.

    Unless the start of Python matters, the process is forked from one that has imported crmctl already (warm_program.py).
    """
    words = [str(argument) for argument in arguments]
    given = input.encode() if isinstance(input, str) else input or b""
    around = environment(env)
    if warm := _warm(words, env):
        run = warm.run(words, around, Path(cwd or Path.cwd()), given, timeout)
    else:
        run = subprocess.run([CRMCTL, *words], env=around, input=given, cwd=cwd, capture_output=True, timeout=timeout, check=False)
    return Result(tuple(words), run.returncode, run.stdout.decode(), run.stderr.decode())


def _warm(words: Sequence[str], env: Mapping[str, str | None] | None) -> WarmProgram | None:
    """Return the process to fork this run from, if any."""
    if not hasattr(os, "fork") or any(name.startswith(STARTS) for name in env or {}) or words[:1] in COLD_COMMANDS:
        return None
    return warm_program(str(CRMCTL), *(["service"] if words[:1] in SERVICE_COMMANDS else []))


def start_crmctl(
    *arguments: str | Path, env: Mapping[str, str | None] | None = None, cwd: str | Path | None = None, **pipes: Any
) -> subprocess.Popen[str] | WarmProcess:
    """Start crmctl in the background with pipes for stdin, stdout and stderr; use it as a context manager and end it yourself."""
    words = [str(argument) for argument in arguments]
    if warm := _warm(words, env):
        return warm.open(words, environment(env), Path(cwd or Path.cwd()), **pipes)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    return subprocess.Popen([str(CRMCTL), *words], env=environment(env), cwd=cwd, text=True, encoding="utf-8", **streams)


def spawn(
    *arguments: str | Path,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    columns: int = 80,
    rows: int = 24,
    timeout: float = PATIENCE,
) -> pexpect.spawn:
    """Run crmctl on a real pseudo-terminal of the given size; `expect`, `sendline` and `expect_exit` drive it."""
    words = [str(argument) for argument in arguments]
    sized = environment({"COLUMNS": None, "LINES": None, **(env or {})})
    return pexpect.spawn(
        str(CRMCTL),
        words,
        env=sized,
        cwd=str(cwd) if cwd else None,
        dimensions=(rows, columns),
        timeout=timeout,
        encoding="utf-8",
        codec_errors="replace",  # an interrupt may cut a write in the middle of a character
        echo=False,
    )


def expect_exit(terminal: pexpect.spawn) -> tuple[int, str]:
    """Wait for the end of a spawned run. Return its exit code and its output since the last `expect`, line ends as `\\n`."""
    terminal.expect(pexpect.EOF)
    printed = terminal.before or ""
    terminal.close()
    code = terminal.exitstatus if terminal.exitstatus is not None else 128 + (terminal.signalstatus or 0)
    return code, printed.replace("\r\n", "\n")
