"""The terminal's one owner: the three standard streams, what they are, how wide, and whether in colour. Formats nothing.

Text leaves as UTF-8 whatever the locale says; what UTF-8 cannot hold (a lone surrogate) leaves as `\\udXXX`, which inside JSON
is the right escape.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Literal, TextIO

from crmctl.errors import UsageError, reason

Side = Literal["stdout", "stderr"]

_STYLES = {"bold": "1", "dim": "2", "red": "1;31", "green": "32", "yellow": "33", "cyan": "36", "header": "1"}


class ClosedPipe(SystemExit):
    """Nobody reads stdout any more (`| head`). Not an error: the run ends at once and quietly, with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Streams:
    """Standard input, output and error of one run. `color_mode` (auto, always, never) is set once the command line is known."""

    def __init__(self, stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None, environ: Mapping[str, str]) -> None:
        """A stream that was closed before the start is None: it reads as empty and swallows what is written."""
        self.stdin: TextIO = io.StringIO() if stdin is None else stdin
        self.stdout: TextIO = io.StringIO() if stdout is None else stdout
        self.stderr: TextIO = io.StringIO() if stderr is None else stderr
        self.environ = environ
        self.color_mode = "auto"
        self.above: Callable[[str], None] | None = None
        """Where something is drawn on stderr that moves: takes the lines that are to stand above it."""
        self.sink: IO[bytes] | None = None
        """Where data goes instead of stdout: a pager."""

    @classmethod
    def of_process(cls) -> Streams:
        """The streams this process was started with."""
        return cls(sys.stdin, sys.stdout, sys.stderr, os.environ)

    @property
    def stdin_is_terminal(self) -> bool:
        return _is_terminal(self.stdin)

    @property
    def stdout_is_terminal(self) -> bool:
        return _is_terminal(self.stdout)

    @property
    def stderr_is_terminal(self) -> bool:
        return _is_terminal(self.stderr)

    @property
    def width(self) -> int | None:
        """Columns of stdout right now: COLUMNS, else the terminal's; None when nothing limits a line."""
        columns = self.environ.get("COLUMNS", "")
        if columns.isdecimal() and int(columns) > 0:
            return int(columns)
        if not self.stdout_is_terminal:
            return None
        try:
            return os.get_terminal_size(self.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    @property
    def error_width(self) -> int | None:
        """Columns of stderr right now; None when it is no terminal, where whoever reads it breaks its lines."""
        if not self.stderr_is_terminal:
            return None
        try:
            return os.get_terminal_size(self.stderr.fileno()).columns or None
        except (OSError, ValueError):
            return None

    def color(self, side: Side = "stdout") -> bool:
        """Whether this stream gets colour: --color, then NO_COLOR, CLICOLOR_FORCE, then whether it is a capable terminal."""
        if self.color_mode != "auto":
            return self.color_mode == "always"
        if self.environ.get("NO_COLOR"):
            return False
        if self.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
            return True
        if self.environ.get("CLICOLOR") == "0" or self.environ.get("TERM") == "dumb":
            return False
        return _is_terminal(getattr(self, side))

    def paint(self, text: str, style: str, side: Side = "stdout") -> str:
        """Text in a style (bold, dim, red, green, yellow, cyan, header) where the stream is in colour, else as it is."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and self.color(side) else text

    def write_out(self, text: str) -> None:
        """Write data and hand it to the reader at once; write pages, not cells.

        Raises ClosedPipe when the reader has gone, UsageError when the data cannot be stored (disk full).
        """
        if (sink := self.sink) is None:
            try:
                _write(self.stdout, text)
            except OSError as error:
                self._lost(error)
            return
        try:
            sink.write(text.encode("utf-8", "backslashreplace"))
            sink.flush()
        except OSError:
            raise ClosedPipe from None  # whoever read it has seen enough

    def write_err(self, text: str) -> None:
        """Write for the person watching. Never fails: a closed stderr must not stop a run that is writing records."""
        if (above := self.above) is not None:
            above(text)
            return
        try:
            _write(self.stderr, text)
        except (OSError, ValueError):
            _silence(self.stderr)

    @property
    def reader_is_gone(self) -> bool:
        """Whether stdout is a pipe that nobody will read any more. False where the system does not tell before something is written."""
        import select

        try:
            watched = select.poll()
            watched.register(self.stdout.fileno(), 0)
            return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in watched.poll(0))
        except (AttributeError, OSError, ValueError):
            return False

    def flush(self) -> None:
        """Hand over what others wrote to stdout. Raises like write_out."""
        try:
            self.stdout.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        _silence(self.stdout)  # or the interpreter would complain again on its way out
        if error.errno in (errno.EPIPE, errno.EINVAL, errno.ECONNRESET) or isinstance(error, BrokenPipeError):
            raise ClosedPipe from None
        raise UsageError(
            f"cannot write the output: {reason(error)}", hint="what was written so far is incomplete", code="output_failed"
        ) from error


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def _write(stream: TextIO, text: str) -> None:
    """All of it, to the descriptor itself: without a buffer (PYTHONUNBUFFERED) or on pipes that do not block, a write may take a part.

    That part is no error to Python: https://docs.python.org/3/library/io.html#io.RawIOBase.write.
    """
    stream.flush()  # others may have written text; keep the order
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(text)
        stream.flush()
        return
    raw = getattr(buffer, "raw", buffer)
    left = memoryview(text.encode("utf-8", "backslashreplace"))
    while left:
        written = raw.write(left)
        if written is None:
            _await_room(stream)
        left = left[written or 0 :]
    buffer.flush()


def _await_room(stream: TextIO) -> None:
    import select

    select.select([], [stream], [])


def _silence(stream: Any) -> None:
    """Point a broken stream at nothing, so that what is still in its buffer goes there without another error."""
    try:
        descriptor = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
    except (OSError, ValueError, AttributeError):
        pass
