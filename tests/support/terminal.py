"""Python code on a real pseudo-terminal or in pipes. For the installed `crmctl` itself use cli.spawn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pexpect

from tests.support.patience import PATIENCE


@dataclass(frozen=True)
class Outcome:
    """The result of a run: `out` and `err` are separate in pipes; on a terminal all of it is `out`, line ends as `\\n`."""

    code: int
    out: str
    err: str = ""


def _environment(env: Mapping[str, str | None] | None) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, "COLUMNS": None, "LINES": None, **(env or {})}
    return {name: value for name, value in merged.items() if value is not None}


def open_terminal(code: str, *, columns: int = 80, rows: int = 24, env: Mapping[str, str | None] | None = None) -> pexpect.spawn:
    """Run Python code on a pseudo-terminal; `expect`, `send` and `setwinsize(rows, columns)` drive it, `close_terminal` ends it."""
    return pexpect.spawn(
        sys.executable, ["-c", code], env=_environment(env), dimensions=(rows, columns), timeout=PATIENCE, encoding="utf-8", echo=False
    )


def close_terminal(terminal: pexpect.spawn) -> Outcome:
    """Wait for the end; `out` is the output since the last `expect`."""
    terminal.expect(pexpect.EOF)
    printed = (terminal.before or "").replace("\r\n", "\n")
    terminal.close()
    return Outcome(terminal.exitstatus if terminal.exitstatus is not None else 128 + (terminal.signalstatus or 0), printed)


def run_on_terminal(code: str, *, columns: int = 80, env: Mapping[str, str | None] | None = None) -> Outcome:
    """Run Python code on a pseudo-terminal to its end."""
    return close_terminal(open_terminal(code, columns=columns, env=env))


def run_in_pipes(code: str, *, env: Mapping[str, str | None] | None = None, input: str = "", **streams: Any) -> Outcome:
    """Run Python code with pipes for its streams; `stdout=` or `stderr=` may replace them."""
    wanted: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    run = subprocess.run([sys.executable, "-c", code], env=_environment(env), input=input.encode(), timeout=PATIENCE, check=False, **wanted)
    return Outcome(run.returncode, (run.stdout or b"").decode(), (run.stderr or b"").decode())
