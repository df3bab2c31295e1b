"""Create parents before the rows of a job, and set links after them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from crmctl.clock import Backoff
from crmctl.errors import InterruptedByUser, PartialError, ServiceError
from crmctl.files.spills import chunks
from crmctl.files.validation import Entry
from crmctl.match.key_lookups import Lookup
from crmctl.match.keys import KeyIndex
from crmctl.match.references import Links, ParentGroup, ReferenceMap, RowLink
from crmctl.plan.audit import capture_ids
from crmctl.plan.import_run import deliver
from crmctl.values.attribute_types import Trait, types_with
from crmctl.write.database import ORPHANED, HighWaterMark, JobState, RowState
from crmctl.write.journal import BEFORE, FILE_NAME, Header, Journal, RowEntry
from crmctl.write.send_context import SendContext, SentRows


@contextmanager
def phase_context(run: SendContext, name: str, **facts: Any) -> Iterator[SendContext]:
    """Yield the run with the journal of a phase. Create the journal if needed. `facts`: header fields that differ from the job's.

    Raises StorageError if rows were sent with a journal that is gone.
    """
    main = run.journal
    folder = main.folder / name
    journal: Journal | None = None
    if not (folder / FILE_NAME).exists() and not HighWaterMark(folder).read()[0].sends:
        # The remains of a journal that was never complete
        for path in folder.glob("*") if folder.is_dir() else ():
            path.unlink()
        plain: dict[str, Any] = {"mapping": "", "plan": {}, "unique": None, "keys": [], "keeps_overwritten": False}
        header: Header = replace(main.header, job=f"{main.header.job}/{name}", created_at=run.clock.now(), **{**plain, **facts})
        journal = Journal.create(folder, header, run.clock)
    with closing(journal or Journal(folder, run.clock)) as journal, journal.hold():
        yield replace(run, journal=journal, newest=lambda: None)  # that page may be of another object


def send_phase(phase: SendContext, count: int, entries: Callable[[], Iterable[Entry]], what: str) -> None:
    """Send the remaining entries of a phase. Raises the error that ends it early. `what`: a word for its rows in messages."""
    journal = phase.journal
    begin_phase(journal, count)
    result = deliver(phase, SentRows(entries))
    if result.error is not None:
        raise result.error
    counts = journal.counts()
    rows = counts[RowState.UNSENT] + counts[RowState.IN_DOUBT]
    why = f": {result.notes[0]}" if result.notes else ""
    if rows:
        raise PartialError(f"{rows:,} of {count:,} {what} are not settled{why}", code="phase_unsettled")


def begin_phase(journal: Journal, count: int) -> None:
    """Journal the number of rows of a phase, once."""
    if journal.state is JobState.CHECKING:
        journal.restart_check()
        journal.conclude((), count)
        journal.state = JobState.OPEN


FOLDER = "parents"
TELLING = types_with(Trait.TELLING)

TICK_SECONDS = 0.5
SEARCHES = 8
"""Number of searches for records just created; GAPS are the seconds between them."""

SEARCHES_FOR_REFUSED = 5
"""Number of searches for refused parents with a unique value: 15 seconds."""

UNLISTED = "; the service lists no record with this value, and may list it later"

GAPS = Backoff(longest=30.0, jitter=0.0)


def make_parents(run: SendContext, references: ReferenceMap) -> None:
    """Create the missing parents and reject rows whose parent could not be created. Raises the error that ends it early."""
    journal = run.journal
    for number, group in enumerate(references.groups(), 1):
        reference = group.reference
        unique = reference.key if reference.type in TELLING else None
        facts = {"object": reference.object, "object_id": reference.object_id, "mode": "create", "unique": unique}
        with phase_context(run, f"{FOLDER}-{number}", **facts) as phase:
            if phase.journal.state is not JobState.FINISHED:
                _Parents(phase, references, group).make()
    for ordinal, why in references.orphans():
        if journal.row(ordinal) is None:
            journal.conclude([(ordinal, RowState.REJECTED, None, f"{ORPHANED}{why}")])


class _Parents:
    """The parents of one group, created in a separate phase."""

    def __init__(self, phase: SendContext, references: ReferenceMap, group: ParentGroup) -> None:
        self.phase = phase
        self.journal = phase.journal
        self.references = references
        self.group = group
        object_id = group.reference.object_id
        self.lookup = Lookup(phase.service, object_id, lambda: phase.interrupt.requested, as_of=references.as_of(object_id))

    def make(self) -> None:
        """Create the parents. Raises the error that ends it early."""
        reference = self.group.reference
        begin_phase(self.journal, self.group.size)
        self._use_existing(lambda numbers: {*numbers} - self.journal.rows(min(numbers), max(numbers)).keys())
        send_phase(self.phase, self.group.size, self._entries, f"records of {reference.object}")
        self._look_for_refused()
        late = UNLISTED if self._is_unique else ""
        for chunk in chunks(self._all()):
            errors = _failures(self.journal, chunk[0][0], chunk[-1][0])
            self.references.know_parents({}, {number: f"{reference.told}: {error}{late}" for number, error in errors.items()})
        self._read_back()
        self.journal.state = JobState.FINISHED

    @property
    def _is_unique(self) -> bool:
        return self.group.reference.is_unique

    def _look_for_refused(self) -> None:
        """Use refused parents that another client created since crmctl looked. Lists may show a unique one a few seconds later."""
        for _ in GAPS.tries(SEARCHES_FOR_REFUSED if self._is_unique else 1, self._wait):
            self._use_existing(lambda numbers: _failures(self.journal, min(numbers), max(numbers)).keys())
            if not self.journal.counts()[RowState.FAILED]:
                return

    def _wait(self, seconds: float) -> None:
        while seconds > 0:
            if self.phase.interrupt.requested:
                raise InterruptedByUser("interrupted")
            self.phase.clock.sleep(min(seconds, TICK_SECONDS))
            seconds -= TICK_SECONDS

    def _all(self) -> Iterator[tuple[int, dict[str, Any], str | None]]:
        return self.references.parents(self.group)

    def _entries(self) -> Iterator[Entry]:
        return (Entry.of(number, data) for number, data, _ in self._all())

    def _use_existing(self, chosen: Callable[[Sequence[int]], Collection[int]]) -> None:
        """Look for chosen parents that another client created since, and do not create them."""
        with KeyIndex(self.group.reference.rule) as index:
            for chunk in chunks(self._all()):
                numbers = chosen([number for number, _, _ in chunk])
                for number, data, _ in chunk:
                    if number in numbers:
                        index.want(number, data)
            for matches in self._search(index):
                self.journal.conclude((number, RowState.UNSENT, None, None) for number, _, _ in matches)
                self.journal.conclude((number, RowState.UNCHANGED, record_id, None) for number, record_id, _ in matches)

    def _read_back(self) -> None:
        """Find the ids of the created parents. Raises ServiceError if the service does not show them."""
        for look in GAPS.tries(SEARCHES, self._wait):
            missing = self._look_for_ids(is_first=look == 1)
            if not missing:
                return
        raise ServiceError(
            f"the service does not show every record of {self.group.reference.object} that was created: {missing:,} missing",
            code="not_shown",
        )

    def _look_for_ids(self, *, is_first: bool) -> int:
        """Search once for the ids of created parents. Return how many are still missing."""
        with KeyIndex(self.group.reference.rule) as index:
            for chunk in chunks(self._all()):
                failed = _failures(self.journal, chunk[0][0], chunk[-1][0])
                for number, data, record_id in chunk:
                    if record_id is None and number not in failed:
                        index.want(number, data)
            missing = index.key_count
            for matches in self._search(index, among_changes=is_first):
                self.journal.name_rows({number: record_id for number, record_id, _ in matches})
                missing -= len(matches)
            return missing

    def _search(self, index: KeyIndex, *, among_changes: bool = True) -> Iterator[Sequence[tuple[int, str, str]]]:
        """Yield the parents that now have a record, after storing their ids, or an error if several records have the key."""
        if index.key_count and not (among_changes and self.lookup.refresh(index.see)):
            self.lookup.fill(index)
        for matches in chunks(index.matches()):
            ids = {number: first for number, first, last in matches if first == last}
            reference = self.group.reference
            several = {
                number: f"{reference.told}: several records of {reference.object} have this value, such as {first} and {last}"
                for number, first, last in matches
                if first != last
            }
            self.references.know_parents(ids, several)
            yield matches


def _failures(phase: Journal, first: int, last: int) -> dict[int, str]:
    entries = phase.rows(first, last)
    return {number: entry.error or "refused" for number, entry in entries.items() if entry.state is RowState.FAILED}


LINKS_FOLDER = "links"
WRITTEN = (RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED)


class _CannotLink(Exception):
    """A row cannot be linked; the message says why."""


def link_rows(run: SendContext, references: ReferenceMap, again: Callable[[], Iterable[Entry]]) -> None:
    """Set the remaining references between rows. A row that cannot be linked fails, although its record exists; its error names it."""
    journal = run.journal
    with phase_context(run, LINKS_FOLDER, mode="upsert") as phase:
        if phase.journal.state is JobState.FINISHED:
            return
        if phase.journal.state is JobState.CHECKING:
            _learn_ids(run, references, again)
            for ordinal, links in references.links():
                if _row(journal, ordinal).state in WRITTEN:
                    try:
                        _data(references, journal, ordinal, links)
                    except _CannotLink as problem:
                        _fail(references, journal, ordinal, str(problem))
            begin_phase(phase.journal, sum(1 for _ in second_writes(references, journal)))
        if not phase.journal.has_sent:
            # Records that the job created have no references yet: a link with a lost answer may be repeated until they have some.
            created = (entry for entry in second_writes(references, journal) if _row(journal, entry.ordinal).state is RowState.CREATED)
            phase.journal.keep(BEFORE, ((entry.ordinal, dict.fromkeys(entry.data)) for entry in created))
        count = sum(phase.journal.counts().values())
        send_phase(phase, count, lambda: second_writes(references, journal), "links between rows")
        for ordinal, _ in references.links():
            for why in _failures(phase.journal, ordinal, ordinal).values():
                _fail(references, journal, ordinal, why)
        phase.journal.state = JobState.FINISHED


def _learn_ids(run: SendContext, references: ReferenceMap, again: Callable[[], Iterable[Entry]]) -> None:
    """Find the ids of linked records that the service did not return. Raises read errors."""
    journal = run.journal
    linked = ((ordinal, *(link.row for every in links.values() for link in every.values)) for ordinal, links in references.links())
    entries = (_row(journal, row) for rows in linked for row in rows if row is not None)
    if any(entry.record_id is None for entry in entries if entry.state is RowState.CREATED):
        capture_ids(journal, run.reader(), again)


def second_writes(references: ReferenceMap, journal: Journal) -> Iterator[Entry]:
    for ordinal, links in references.links():
        row = _row(journal, ordinal)
        if row.record_id is not None and (row.state in WRITTEN or references.is_unlinked(ordinal)):
            try:
                data = _data(references, journal, ordinal, links)
            except _CannotLink:
                continue
            yield Entry.of(ordinal, data, row.record_id)


def _data(references: ReferenceMap, journal: Journal, ordinal: int, links: dict[str, Links]) -> dict[str, Any]:
    """Return the references in the second write of a row. Raises _CannotLink."""
    if _row(journal, ordinal).record_id is None:
        raise _CannotLink("crmctl cannot tell which record it became")
    data: dict[str, Any] = {}
    for slug, (many, values) in links.items():
        ids = [_meant(references, journal, slug, value) for value in values]
        data[slug] = ids if many else ids[0]
    return data


def _meant(references: ReferenceMap, journal: Journal, slug: str, link: RowLink) -> str:
    if link.row is None:
        return str(link.id)
    entry = _row(journal, link.row)
    if entry.record_id is None or (entry.state not in WRITTEN and not references.is_unlinked(link.row)):
        raise _CannotLink(f"{slug}: row {link.row} of the file, which it refers to, is {_STATES.get(entry.state, 'not known')}")
    if link.rival is not None and link.rival != entry.record_id:
        raise _CannotLink(f"{slug}: both row {link.row} of the file (record {entry.record_id}) and record {link.rival} are meant")
    return entry.record_id


_STATES = {
    RowState.CREATED: "created, but crmctl cannot tell as which record",
    RowState.FAILED: "refused by the service",
    RowState.REJECTED: "invalid",
    RowState.SKIPPED: "skipped",
}


def _row(journal: Journal, ordinal: int) -> RowEntry:
    return journal.row(ordinal) or RowEntry(RowState.UNSENT)


def _fail(references: ReferenceMap, journal: Journal, ordinal: int, why: str) -> None:
    row = _row(journal, ordinal)
    if row.state in WRITTEN:
        outcome = f"record {row.record_id} was written" if row.record_id is not None else "it was written"
        references.know_unlinked(ordinal)
        journal.overrule(ordinal, RowEntry(RowState.FAILED, None, f"{outcome}, but not linked: {why}"))
