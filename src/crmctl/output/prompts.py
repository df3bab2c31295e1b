"""Questions to the person at the terminal. Where nobody can answer, a question is a usage error that names the flag to use instead."""

from __future__ import annotations

from crmctl.errors import InterruptedByUser, UsageError
from crmctl.output.control_characters import clean
from crmctl.output.streams import Streams


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

        Raises InterruptedByUser for any other answer, UsageError naming `flag` where nobody can be asked.
        """
        self._require(question, flag)
        if self._ask(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise InterruptedByUser("declined; nothing was changed")

    def typed(self, question: str, expected: str, *, flag: str = "--yes") -> None:
        """Return when exactly `expected` was typed. Raises like confirm."""
        self._require(question, flag)
        if self._ask(f"{question}\nType {expected} to confirm: ").strip() != expected:
            raise InterruptedByUser(f"that was not {expected!r}; nothing was changed")

    def text(self, question: str, *, flag: str) -> str:
        """One line of text, blanks trimmed. Raises InterruptedByUser for Ctrl-C and Ctrl-D, UsageError naming `flag`."""
        self._require(question, flag)
        return self._ask(f"{question}: ").strip()

    def secret(self, question: str, *, flag: str = "--with-key") -> str:
        """A secret that is not shown while it is typed. Raises like text."""
        self._require(question, flag)
        import getpass

        try:
            return getpass.getpass(f"{clean(question)}: ")
        except (KeyboardInterrupt, EOFError):
            raise self._interrupted() from None

    def _require(self, question: str, flag: str) -> None:
        if self.can_ask:
            return
        why = "--no-input is set" if self.no_input else "there is no terminal to ask on"
        raise UsageError(f"{clean(question).rstrip('?:. ')}: needs an answer, but {why}", hint=f"pass {flag}", code="confirmation_required")

    def _ask(self, prompt: str) -> str:
        shown = "\n".join(clean(line) for line in prompt.split("\n"))
        try:
            self.streams.write_err(shown)  # inside: who sees the question may press Ctrl-C before anything is read
            answer = self.streams.stdin.readline()
        except KeyboardInterrupt:
            raise self._interrupted() from None
        if not answer:
            raise self._interrupted()
        return answer

    def _interrupted(self) -> InterruptedByUser:
        self.streams.write_err("\n")  # the cursor is still behind the question
        return InterruptedByUser("interrupted; nothing was changed")
