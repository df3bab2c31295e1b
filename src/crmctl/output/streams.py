"""The standard streams, the pager, and text made safe for a terminal."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Literal, TextIO

from crmctl.errors import UsageError, reason

Side = Literal["stdout", "stderr"]

_STYLES = {"bold": "1", "dim": "2", "red": "1;31", "green": "32", "yellow": "33", "cyan": "36", "header": "1"}


class ClosedPipe(SystemExit):
    """The reader of stdout has gone (`| head`). The run ends at once and quietly with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Streams:
    """Standard input, output and error of one run. `color_mode` (auto, always, never) is set once the command line is known."""

    def __init__(self, stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None, environ: Mapping[str, str]) -> None:
        """None is a closed stream: it reads as empty and drops its output."""
        self.stdin: TextIO = io.TextIOWrapper(io.BytesIO()) if stdin is None else stdin
        self.stdout: TextIO = io.StringIO() if stdout is None else stdout
        self.stderr: TextIO = io.StringIO() if stderr is None else stderr
        self.environ = environ
        self.color_mode = "auto"
        self.above: Callable[[str], None] | None = None
        """While a progress bar is on stderr: prints lines above it."""
        self.sink: IO[bytes] | None = None
        """The pager that takes the data instead of stdout."""

    @classmethod
    def of_process(cls) -> Streams:
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
        """Current columns of stdout: COLUMNS, else the terminal's; None if lines have no limit."""
        if columns := self._set_width:
            return columns
        if not self.stdout_is_terminal:
            return None
        try:
            return os.get_terminal_size(self.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    @property
    def _set_width(self) -> int | None:
        columns = self.environ.get("COLUMNS", "")
        return int(columns) or None if columns.isdecimal() else None

    @property
    def error_width(self) -> int | None:
        """Current columns of stderr; None if it is no terminal."""
        if not self.stderr_is_terminal:
            return None
        try:
            return self._set_width or os.get_terminal_size(self.stderr.fileno()).columns or None
        except (OSError, ValueError):
            return None

    def color(self, side: Side = "stdout") -> bool:
        """Whether this stream uses colour: by --color, then NO_COLOR, CLICOLOR_FORCE, then the terminal."""
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
        """Return the text in a style (bold, dim, red, green, yellow, cyan, header) if the stream uses colour, else unchanged."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and self.color(side) else text

    def write_out(self, text: str) -> None:
        """Write data and flush it; call it per page, not per cell.

        Raises ClosedPipe when the reader has gone, UsageError when the disk is full.
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
            raise ClosedPipe from None  # the user left the pager

    def write_err(self, text: str) -> None:
        """Write to the user. Never fails: a closed stderr must not stop a run that writes records."""
        if (above := self.above) is not None:
            above(text)
            return
        try:
            _write(self.stderr, text)
        except (OSError, ValueError):
            _silence(self.stderr)

    @property
    def reader_is_gone(self) -> bool:
        """Whether the reader of stdout has closed the pipe. False on systems that cannot tell before a write."""
        import select

        try:
            watched = select.poll()
            watched.register(self.stdout.fileno(), 0)
            return any(seen & (select.POLLERR | select.POLLHUP) for _, seen in watched.poll(0))
        except (AttributeError, OSError, ValueError):
            return False

    def flush(self) -> None:
        """Flush stdout. Raises like write_out."""
        try:
            self.stdout.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        _silence(self.stdout)  # or the interpreter would complain again on its way out
        if error.errno in (errno.EPIPE, errno.EINVAL, errno.ECONNRESET) or isinstance(error, BrokenPipeError):
            raise ClosedPipe from None
        raise UsageError(
            f"cannot write the output: {reason(error)}", hint="the output so far is incomplete", code="output_failed"
        ) from error


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def _write(stream: TextIO, text: str) -> None:
    """Write the whole text to the descriptor: unbuffered or non-blocking streams may accept only a part of it.

    Python does not report that as an error: https://docs.python.org/3/library/io.html#io.RawIOBase.write.
    """
    stream.flush()  # keep the order of earlier text
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(text)
        stream.flush()
        return
    raw = getattr(buffer, "raw", buffer)
    rest = memoryview(text.encode("utf-8", "backslashreplace"))
    while rest:
        written = raw.write(rest)
        if written is None:
            import select

            select.select([], [stream], [])
        rest = rest[written or 0 :]
    buffer.flush()


def _silence(stream: Any) -> None:
    """Redirect a broken stream to the null device, so that flushing its buffer raises no further error."""
    try:
        descriptor = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
    except (OSError, ValueError, AttributeError):
        pass


LESS = "FRX"
"""Default options of less: exit if the text fits, keep colours, leave the text on the screen."""


@contextmanager
def paged(streams: Streams, command: str | None) -> Iterator[None]:
    """Send output through the pager if stdout is a terminal. Raises UsageError when the pager cannot run."""
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
    """Wait for the pager, which handles Ctrl-C itself."""
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            continue


# CSI sequences, OSC and other strings up to their end, two-character escapes.
_ESCAPES = r"(?s)\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)|\x1b.|\x9b[0-?]*[ -/]*[@-~]"
_JOINERS = "\u200c\u200d"  # Persian and emoji need them


def clean(text: str) -> str:
    """Return one line of printable text: line breaks and odd spaces become blanks, lone surrogates the replacement character."""
    return text if text.isprintable() else "".join(_shown(character) for character in re.sub(_ESCAPES, "", text))


def clean_lines(text: str) -> list[str]:
    """Return the lines of a text, each clean."""
    return [clean(line) for line in text.splitlines()] or [""]


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character.isspace():
        return " "
    import unicodedata  # loaded only for unprintable text

    return {"Cs": "�", "Co": character, "Cn": character}.get(unicodedata.category(character), "")


def cell_width(text: str) -> int:
    """Return the terminal cells of a text: two per wide character, none per combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


NARROWEST = 20
"""Text in less room is left to the terminal to wrap."""


def wrapped(text: str, width: int | None) -> list[str]:
    """Return a line wrapped to the width, with its blanks and its indent."""
    if width is None or width < NARROWEST or cell_width(text) <= width:
        return [text]
    if indent := text[: len(text) - len(text.lstrip(" "))]:
        first, *others = wrapped(text.lstrip(" "), width - 2 * len(indent))
        return [indent + first, *(2 * indent + line for line in others)]
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and cell_width(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]
