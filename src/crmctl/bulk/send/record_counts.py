"""How many records there must be, and how many the service says there are: the second witness that rows are absent. No reading here."""

from __future__ import annotations

from dataclasses import dataclass, field

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.read.read_back import Baseline

FEWER = "its lists are old, or somebody deletes records"
MORE = "somebody else creates records, or rows are there twice; crmctl bulk repair looks for those"


@dataclass
class RecordCount:
    """`before` is the total when the job began, None where the service does not say one. `found`: rows of batches still in doubt that were
    found, by number of the batch."""

    journal: Journal
    before: int | None
    found: dict[int, int] = field(default_factory=dict)
    _marks: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def of(cls, journal: Journal) -> RecordCount:
        baseline = Baseline.from_document(journal.recall("baseline"))
        return cls(journal, baseline.total if baseline is not None else None)

    @property
    def made(self) -> int:
        """Records that the job is known to have made."""
        return self.journal.records_made() + sum(self.found.values())

    def left(self, total: int | None, made: int, sent_at: float) -> int | None:
        """Records beyond those that were there, those that were `made`, and those of others that were known before `sent_at` (Unix time).

        Negative: fewer than there must be. None where nobody can count.
        """
        if total is None or self.before is None:
            return None
        strangers = next((count for at, count in reversed(self._marks) if at < sent_at), 0)
        return total - self.before - made - strangers

    def mark(self, number: int, total: int | None, now: float) -> None:
        """At `now` every record was accounted for, and no batch but this one was in doubt: what is left over was made by others."""
        if total is not None and self.before is not None and not self.found.keys() - {number}:
            self._marks.append((now, total - self.before - self.made))

    def rows_since(self, moment: float | None) -> int:
        """Rows that were confirmed at `moment` (Unix time) or later, or found at any time."""
        return self.journal.records_made(moment) + sum(self.found.values())

    def verdict(self, total: int | None, in_doubt: int) -> str | None:
        """What is wrong where more or fewer records are there than were created; `in_doubt` rows may be there or not."""
        if total is None or self.before is None:
            return "nobody can count whether every created row is there: the service does not say how many records it has"
        made = self.made
        left = total - self.before - made
        if left < 0:
            return f"{made:,} rows were created, and the service has only {total - self.before:,} more records than before: {FEWER}"
        if left > in_doubt:
            return f"{made:,} rows were created, and the service has {total - self.before:,} more records than before: {MORE}"
        return None
