"""This run of this import: all that its steps need, in one object; and the steps it may have besides its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crmctl.bulk.findings import Finding
from crmctl.bulk.match.at_hand import AtHand, nothing_at_hand
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.rows.batches import Entry, SendableRow
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.row_actions import Resolver
from crmctl.bulk.send.context import SendContext
from crmctl.errors import CrmctlError


class CheckedRow(SendableRow, Protocol):
    """A validated row and what was found wrong with it; the same each time the same input is read."""

    @property
    def findings(self) -> Sequence[Finding]: ...


class InputRows(Protocol):
    """Reads the input anew, in its order. Where records are found by key, every row is a `Payload`."""

    def __call__(self) -> Iterable[CheckedRow]: ...


class Hooks:
    """What belongs to an import besides its rows: here nothing. Each step returns the error because of which nothing more is sent now."""

    @property
    def changes_rows(self) -> bool:
        """Whether rows become complete only after the check."""
        return False

    def approve(self, run: ImportRun, entries: Iterable[Entry]) -> CrmctlError | None:
        """All rows are checked and nothing was sent: these are the valid ones."""
        return None

    def approve_keys(self, run: ImportRun, index: KeyIndex) -> CrmctlError | None:
        """The same where records are found by key."""
        return None

    def before_rows(self, run: ImportRun) -> CrmctlError | None:
        """Rows are about to be sent, for the first time or again."""
        return None

    def frees_rows(self, run: ImportRun) -> bool:
        """Every row was sent: whether some that were refused may be sent again."""
        return False

    def after_rows(self, run: ImportRun) -> CrmctlError | None:
        """Every row has its outcome."""
        return None


@dataclass(frozen=True, kw_only=True)
class ImportRun(SendContext):
    """`report` hears every finding of the check, `resolver` says which rows update which records, `hooks` is what else there is to do.

    `stop_on_error`: one locally invalid row means that nothing is sent. `guard`: how much may change. `at_hand`: where records may be
    without asking the service.
    """

    rows: InputRows
    report: Callable[[Finding], None] = lambda _: None
    resolver: Resolver | None = None
    hooks: Hooks = field(default_factory=Hooks)
    stop_on_error: bool = True
    guard: Guard = field(default_factory=Guard)
    at_hand: AtHand = nothing_at_hand
