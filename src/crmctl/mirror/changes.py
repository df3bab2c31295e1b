"""What changed since the last sync, and whether the list still joins what the mirror knows: newest change first, until both are certain.

The list is read back to the look-back before the last sync, and on until so many known records stood where the mirror has them. A backup
that was put back, another service, a clock that went back: all show here, and then nothing is certain but reading everything anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from crmctl.bulk.export.passes import ROUNDS, UNEVEN, GatherMark
from crmctl.bulk.read.counted_reads import CountedReads
from crmctl.bulk.read.sorted_lists import Listing, NoProgress, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass
from crmctl.clock import Clock
from crmctl.errors import NotFoundError, RejectedError
from crmctl.mirror.columns import wire_text
from crmctl.mirror.object_table import ObjectTable, Written
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import MICROS, micros_of, micros_of_date

_NEVER = -(1 << 62)
_UNORDERED = "records of one time of change come in another order every time"

JOIN = 100
"""So many known records must stand in the list as the mirror has them."""

FEW = 20
"""So many records that are not in the list any more are asked for one by one."""


class CannotProve(Exception):
    """What the lists say does not fit what the mirror knows. `reason` completes: everything was read anew, because ... `is_lasting`: it is
    the service's way, and will be so the next time; `contradicts`: not even a complete reading a moment ago agrees with it."""

    def __init__(self, reason: str, *, is_lasting: bool = False, contradicts: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_lasting = is_lasting
        self.contradicts = contradicts


@dataclass
class ChangesRead:
    """`mark`: from where the next sync reads. `total`: how many records there are as of that moment. `joined`: known records that stood
    where they should; `is_whole`: the whole list was read, else all that was changed at `lowest` or
    later."""

    mark: GatherMark
    newest: int | None
    total: int | None
    joined: int = 0
    is_whole: bool = False
    lowest: int | None = None
    written: Written = field(default_factory=Written)


@dataclass
class _PassResult:
    began: tuple[int, int]
    newest: int | None
    total: int | None
    news: int = 0
    joined: int = 0
    requests: int = 0
    walks: int = 0
    lowest: int | None = None


class ChangeReader:
    """Reads the changes of one object into its table, inside the caller's transaction. `sorts`: it is known that the service sorts by time
    of change; else what does not stand in a part of the list may stand elsewhere. `shows_order`: what was read is not in the order of
    creation, which shows it."""

    def __init__(self, lister: CountedReads, object_id: str, table: ObjectTable, db: sqlite3.Connection, clock: Clock) -> None:
        self._lister = lister
        self._object_id = object_id
        self._table = table
        self._db = db
        self._clock = clock
        self.shows_order = self.sorts = False

    def read(self, mark: GatherMark, newest: int | None, lookback: float, *, whole: bool = False) -> ChangesRead:
        """What changed since the last reading began, when `newest` was the newest change; with `whole` all of the look-back before it is
        read too. Raises CannotProve, and what requests raise."""
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS _seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("DELETE FROM temp._seen")
        written = Written()
        first = latest = self._pass(mark, written, mark.since if whole else _latest_known(mark.as_of, newest), joins=True)
        rounds = 1
        while latest.requests > 1 and (latest.news if latest is not first else not self._lacks_some(first)):
            if rounds == ROUNDS:
                raise CannotProve("others kept changing records")
            end = _latest_known(latest.began[0], latest.newest)
            latest = self._pass(GatherMark(end, *latest.began), written, end, joins=False)
            rounds += 1
        if first.walks and rounds > 2:
            # What others write moves the groups of older records, so that they only seem to be complete.
            raise CannotProve(_UNORDERED)
        is_whole = first.lowest is None and not first.walks
        if is_whole or (self.sorts and not first.walks):
            self._drop_unseen(first, latest, written)
        # Without a count, what was deleted after the first reading is not known.
        following = next_mark((first if latest.total is None else latest).began, latest.newest, lookback)
        return ChangesRead(following, latest.newest, latest.total, first.joined, is_whole, first.lowest, written)

    def seen_at_once(self, page: Sequence[Record], lookback: float) -> ChangesRead:
        """What reading this page, which is the whole list, comes to."""
        begun = self._begin(list(page))
        return ChangesRead(next_mark(begun.began, begun.newest, lookback), begun.newest, begun.total, is_whole=True)

    def _pass(self, mark: GatherMark, written: Written, end: int, *, joins: bool) -> _PassResult:
        """One reading of the list, newest change first, until older than `end`; with `joins` also until it is known to join what the mirror
        has. Where a clock has gone back since, it goes on to where the mark says."""
        listing = Listing(self._object_id, field="updated_at", descending=True)
        statistics, before = PassStatistics(), self._lister.requests
        reading = AnchoredPass(self._lister, listing, statistics)
        result: _PassResult | None = None
        horizon = mark.since
        try:
            for page in reading.pages():
                if result is None:
                    result = self._begin(page)
                    horizon = mark.horizon(*result.began)
                    end = end if horizon == mark.since else horizon
                self._take(page, horizon if joins else None, result, written)
                reading.read_back_to(end if not joins or result.joined >= JOIN else _NEVER)
        except Unsorted:
            raise CannotProve("the service does not sort by time of change", is_lasting=True) from None
        except (NoProgress, RejectedError) as error:
            raise CannotProve(f"the changes cannot be listed: {error.message}") from error
        if statistics.unstable:
            raise CannotProve(_UNORDERED)
        if result is None:
            result = self._begin([])
        result.requests, result.walks = self._lister.requests - before, statistics.walks
        if reading.is_beyond:
            result.lowest = min(end, end if reading.position.key is None else -reading.position.key)
        return result

    def _lacks_some(self, first: _PassResult) -> bool:
        """Whether fewer are counted than are known, and none of the part that was read are gone: who looks for those that are reads the
        changes once more after that."""
        counted = first.total
        if counted is None or first.walks or counted != self._lister.total or counted >= self._table.count():
            return False
        return not self._unseen(first.lowest)

    def _begin(self, page: list[Record]) -> _PassResult:
        here = int(self._clock.now() * MICROS)
        told = micros_of_date(self._lister.date)
        return _PassResult((here if told is None else told, here), _changed(page[0]) if page else None, self._lister.total)

    def _take(self, page: list[Record], horizon: int | None, result: _PassResult, written: Written) -> None:
        created = [micros_of(record.created_at) or 0 for record in page]
        self.shows_order = self.shows_order or created not in (sorted(created), sorted(created, reverse=True))
        news = []
        for record in page:
            is_first = self._db.execute("INSERT OR IGNORE INTO temp._seen VALUES (?)", (record.id,)).rowcount
            changed, known = _changed(record) or 0, self._table.known(record.id)
            if known is not None and known.wire == wire_text(record.wire):
                result.joined += is_first  # what comes again may have been learnt a moment ago
                continue
            if known is not None and changed < known.updated:
                raise CannotProve("a record has gone back in time, as after a backup was put back", contradicts=True)
            if horizon is not None and changed < horizon:
                kind = "unknown" if known is None else "another"
                raise CannotProve(f"a record changed long ago is {kind}, as after a backup was put back", contradicts=True)
            news.append(record)
        done = self._table.write(news)
        result.news += len(news)
        written.created += done.created
        written.updated += done.updated

    def _drop_unseen(self, first: _PassResult, latest: _PassResult, written: Written) -> None:
        """Records that should have stood in the part of the list that was read, and did not, are gone."""
        unseen = self._unseen(first.lowest)
        if not unseen:
            return
        if latest.total is not None and len(unseen) > self._table.count() - latest.total:
            raise CannotProve("the list of changes lacks records that are counted, as after a backup was put back", contradicts=True)
        self._check_gone(unseen)
        written.deleted += self._table.delete(unseen)
        written.deleted_ids += unseen

    def _check_gone(self, unseen: list[str]) -> None:
        """A record that was changed after its creation may only have its older content again, and stand further down. Elsewhere as many
        others may be gone as the count tells: so each is asked for, and others where they are few."""
        known = [each for each in map(self._table.known, unseen) if each is not None]
        asked = [each.id for each in known if each.created != each.updated or len(known) <= FEW]
        if len(asked) > most_asked_for(self._table.count()):
            raise CannotProve(f"{len(asked):,} records that were changed are not among the changes")
        for record_id in asked:
            try:
                self._lister.get_record(self._object_id, record_id)
            except NotFoundError:
                continue
            raise CannotProve("a record is not among the changes and is there, as after a backup was put back", contradicts=True)

    def _unseen(self, lowest: int | None) -> list[str]:
        where, values = ("", ()) if lowest is None else (" AND _updated >= ?", (lowest,))
        statement = f"SELECT id FROM {self._table.quoted_name} WHERE id NOT IN (SELECT id FROM temp._seen){where}"  # noqa: S608
        return [row[0] for row in self._db.execute(statement, values)]


def _changed(record: Record) -> int | None:
    return micros_of(record.updated_at)


def _latest_known(as_of: int, newest: int | None) -> int:
    """No later change has an earlier time than this, unless a clock goes back or it becomes visible late."""
    return as_of - UNEVEN if newest is None or newest > as_of + UNEVEN else newest


def most_asked_for(records: int) -> int:
    """So many of an object's records are asked for one by one; more cost as much as all of them."""
    return max(PAGE_LIMIT, records // PAGE_LIMIT)


def next_mark(began: tuple[int, int], newest: int | None, lookback: float) -> GatherMark:
    """From where the next reading looks for changes: the look-back before this one, or before its newest change, which may go by another
    clock. `began` is by the service's clock and by this machine's."""
    now = began[0]
    return GatherMark((now if newest is None else min(now, newest)) - int(lookback * MICROS), *began)
