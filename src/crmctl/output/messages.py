"""Everything said to the person on stderr: notes, warnings, hints, and the one form of an error. Data goes through the emitter.

With a machine format on a stderr that is no terminal, notes wait until the end of the run, and an error drops them. Warnings come at
once in every format, one line each: after an error stderr holds those lines, if there are any, and the error document as its last line.
"""

from __future__ import annotations

from crmctl.errors import CrmctlError
from crmctl.output.control_characters import clean, clean_lines
from crmctl.output.streams import Streams
from crmctl.output.word_wrap import wrapped

COMMAND = "crmctl "
"""What holds a command stays on one line, so that it can be copied."""


class Messages:
    """`quiet` drops notes, hints and successes; `verbose` adds details; `machine` is true for every format but `table`."""

    def __init__(self, streams: Streams, *, quiet: bool = False, verbose: bool = False, machine: bool = False) -> None:
        self.streams = streams
        self.quiet = quiet
        self.verbose = verbose
        self.machine = machine
        self._holds = machine and not streams.stderr_is_terminal
        self._held: list[str] = []

    def note(self, text: str) -> None:
        """Something worth knowing."""
        if not self.quiet:
            self._say("\n".join(self.streams.paint(line, "dim", "stderr") for line in self._lines(clean(text))))

    def success(self, text: str) -> None:
        """What was done."""
        if not self.quiet:
            self._say(f"{self.streams.paint('✓', 'green', 'stderr')} {clean(text)}")

    def hint(self, text: str) -> None:
        """The command that helps."""
        if not self.quiet:
            self._say(f"{self.streams.paint('hint:', 'cyan', 'stderr')} {self._after(6, text)}")

    def warn(self, text: str) -> None:
        """Something that may be wrong: said at once, in one line, even when quiet and before an error document."""
        self.streams.write_err(f"{self.streams.paint('warning:', 'yellow', 'stderr')} {self._after(9, text)}\n")

    def detail(self, text: str) -> None:
        """What only --verbose wants to know."""
        if self.verbose:
            self._say(self.streams.paint(clean(text), "dim", "stderr"))

    def progress(self, text: str) -> None:
        """A line about how far a long run is. Somebody reads along then: from now on nothing is held back, and the order is kept."""
        self._holds = False
        self.finish()
        self._say(clean(text))

    def debug(self, text: str) -> None:
        """A line of --debug: at once and always, because it is what somebody looks at when a run hangs. The caller has redacted the key."""
        self.streams.write_err("".join(f"{line}\n" for line in clean_lines(text)))

    def report_error(self, error: CrmctlError) -> None:
        """The error: one line and a hint for a person, one line of JSON for a program. Notes that were held back are dropped."""
        if self.machine:
            from crmctl.models import jsontext

            self._held.clear()
            self.streams.write_err(jsontext.dumps(error.to_document()) + "\n")
            return
        text = f"{self.streams.paint('error:', 'red', 'stderr')} {self._after(7, error.message)}\n"
        if error.hint:
            text += f"{self.streams.paint('hint:', 'cyan', 'stderr')} {self._after(6, error.hint)}\n"
        self.streams.write_err(text)

    def _after(self, indent: int, text: str) -> str:
        """A text behind a word of so many cells, its further lines below its first."""
        return f"\n{' ' * indent}".join(self._lines(clean(text), indent))

    def _lines(self, text: str, indent: int = 0) -> list[str]:
        width = None if COMMAND in text else self.streams.error_width
        return wrapped(text, width and width - indent)

    def finish(self) -> None:
        """Say what was held back: at the end of a run that succeeded."""
        for line in self._held:
            self.streams.write_err(line)
        self._held.clear()

    def _say(self, line: str) -> None:
        if self._holds:
            self._held.append(f"{line}\n")
        else:
            self.streams.write_err(f"{line}\n")
