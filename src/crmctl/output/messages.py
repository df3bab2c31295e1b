"""Notes, warnings, errors and questions on stderr."""

from __future__ import annotations

from typing import NoReturn

from crmctl.errors import CrmctlError, InterruptedByUser, UsageError
from crmctl.output.streams import Streams, clean, clean_lines, wrapped

COMMAND = "crmctl "
"""Lines with a command are not wrapped, so that users can copy them."""


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
        if not self.quiet:
            self._say("\n".join(self.streams.paint(line, "dim", "stderr") for line in self._lines(clean(text))))

    def success(self, text: str) -> None:
        if not self.quiet:
            self._say(f"{self.streams.paint('✓', 'green', 'stderr')} {clean(text)}")

    def hint(self, text: str) -> None:
        if not self.quiet:
            self._say(f"{self.streams.paint('hint:', 'cyan', 'stderr')} {self._after(6, text)}")

    def warn(self, text: str) -> None:
        """Print a warning at once, in one line, even with --quiet and before an error document."""
        self.streams.write_err(f"{self.streams.paint('warning:', 'yellow', 'stderr')} {self._after(9, text)}\n")

    def detail(self, text: str) -> None:
        """Print a detail with --verbose."""
        if self.verbose:
            self._say(self.streams.paint(clean(text), "dim", "stderr"))

    def progress(self, text: str) -> None:
        """Print a line of progress, after the notes held back so far; later notes appear at once."""
        self._holds = False
        self.finish()
        self._say(clean(text))

    def debug(self, text: str) -> None:
        """Print a line of --debug at once. The caller has redacted the key."""
        self.streams.write_err("".join(f"{line}\n" for line in clean_lines(text)))

    def report_error(self, error: CrmctlError) -> None:
        """Print an error: a line and a hint for people, a line of JSON for programs, without the notes held back."""
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
        """Return the text wrapped with a hanging indent."""
        return f"\n{' ' * indent}".join(self._lines(clean(text), indent))

    def _lines(self, text: str, indent: int = 0) -> list[str]:
        width = None if COMMAND in text else self.streams.error_width
        return wrapped(text, width and width - indent)

    def finish(self) -> None:
        """Print the notes held back, at the end of a successful run."""
        for line in self._held:
            self.streams.write_err(line)
        self._held.clear()

    def _say(self, line: str) -> None:
        if self._holds:
            self._held.append(f"{line}\n")
        else:
            self.streams.write_err(f"{line}\n")


class Prompter:
    """Asks on stderr, reads from stdin, only when all three streams are terminals and `no_input` is not set."""

    def __init__(self, streams: Streams, *, no_input: bool = False) -> None:
        self.streams = streams
        self.no_input = no_input

    @property
    def can_ask(self) -> bool:
        return not self.no_input and self.streams.stdin_is_terminal and self.streams.stdout_is_terminal and self.streams.stderr_is_terminal

    def confirm(self, question: str, *, flag: str = "--yes") -> None:
        """Return when the answer is yes.

        Raises InterruptedByUser for any other answer, UsageError naming `flag` if crmctl cannot prompt.
        """
        self._require(question, flag)
        if self._ask(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise InterruptedByUser("declined; nothing was changed")

    def typed(self, question: str, expected: str) -> None:
        """Return when the user types exactly `expected`. Raises like confirm."""
        self._require(question, "--yes")
        if self._ask(f"{question}\nType {expected} to confirm: ").strip() != expected:
            raise InterruptedByUser(f"that was not {expected!r}; nothing was changed")

    def text(self, question: str, *, flag: str) -> str:
        """Return one line of text, trimmed. Raises InterruptedByUser for Ctrl-C and Ctrl-D, UsageError naming `flag`."""
        self._require(question, flag)
        return self._ask(f"{question}: ").strip()

    def secret(self, question: str, *, flag: str = "--with-key") -> str:
        """Read a secret without echo. Raises like text."""
        self._require(question, flag)
        import getpass

        try:
            return getpass.getpass(f"{clean(question)}: ")
        except (KeyboardInterrupt, EOFError):
            self._interrupt()

    def _require(self, question: str, flag: str) -> None:
        if self.can_ask:
            return
        why = "--no-input is set" if self.no_input else "there is no terminal to ask on"
        raise UsageError(f"{clean(question).rstrip('?:. ')}: needs an answer, but {why}", hint=f"pass {flag}", code="confirmation_required")

    def _ask(self, prompt: str) -> str:
        shown = "\n".join(clean(line) for line in prompt.split("\n"))
        try:
            self.streams.write_err(shown)  # inside: the user may press Ctrl-C before the read starts
            answer = self.streams.stdin.readline()
        except KeyboardInterrupt:
            self._interrupt()
        if not answer:
            self._interrupt()
        return answer

    def _interrupt(self) -> NoReturn:
        self.streams.write_err("\n")  # ends the line of the question
        raise InterruptedByUser("interrupted; nothing was changed") from None
