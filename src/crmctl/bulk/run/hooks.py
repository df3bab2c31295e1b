"""What may belong to an import besides its rows: the steps that `import_run` knows of. What they do is decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.row_actions import Resolver
from crmctl.errors import CrmctlError


class Hooks(Protocol):
    """Each step returns the error because of which nothing more is sent now, or None."""

    @property
    def changes_rows(self) -> bool:
        """Whether rows become complete only after the check."""
        ...

    def approve(self, entries: Iterable[Entry], interrupt: Interrupt) -> CrmctlError | None:
        """All rows are checked and nothing was sent: these are the valid ones."""
        ...

    def approve_keys(self, resolver: Resolver, index: KeyIndex) -> CrmctlError | None:
        """The same where records are found by key."""
        ...

    def before_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        """Rows are about to be sent, for the first time or again."""
        ...

    def frees_rows(self, interrupt: Interrupt) -> bool:
        """Every row was sent: whether some that were refused may be sent again."""
        ...

    def after_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        """Every row has its outcome."""
        ...


class RowsOnly:
    """Nothing besides."""

    changes_rows = False

    def approve(self, entries: Iterable[Entry], interrupt: Interrupt) -> CrmctlError | None:
        return None

    def approve_keys(self, resolver: Resolver, index: KeyIndex) -> CrmctlError | None:
        return None

    def before_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        return None

    def frees_rows(self, interrupt: Interrupt) -> bool:
        return False

    def after_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        return None


ROWS_ONLY = RowsOnly()
