"""A pager between the output and the terminal, for who asked for one. It gets data only; notes wait until it has ended."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crmctl.errors import UsageError, reason
from crmctl.output.streams import Streams

LESS = "FRX"
"""What less does where the environment does not say: end at once for what fits, keep colours, leave the text on the screen."""


@contextmanager
def paged(streams: Streams, command: str | None) -> Iterator[None]:
    """Data written meanwhile goes through the pager, if there is one and stdout is a terminal. Raises UsageError when it cannot be run."""
    if not command or not streams.stdout_is_terminal:
        yield
        return
    try:
        environ = {"LESS": LESS, **streams.environ}
        process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, env=environ)  # noqa: S603 - the user's own pager
    except (OSError, ValueError) as error:
        hint = "CRMCTL_PAGER=less, or crmctl config unset pager"
        raise UsageError(f"cannot run the pager {command!r}: {reason(error)}", hint=hint, code="no_pager") from error
    streams.sink = process.stdin
    try:
        yield
    finally:
        streams.sink = None
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C is the pager's own while it runs."""
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue
