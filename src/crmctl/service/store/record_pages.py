"""One page of an object's records with the exact total.

Counts come from a counter or an index, keys before rows, far pages from the far end. Few matches without an index are found and counted in
one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest
from crmctl.service.store import record_tables
from crmctl.service.store.condition_sql import Where, combine, compile_conditions
from crmctl.service.store.record_tables import Schema, load_schema, record_text
from crmctl.service.store.tx import MAX_IN, Row, Tx, all_in, required
from crmctl.values.filters import Condition

SORTS = record_tables.MOMENTS

DEEP = 1000
"""Offset from which skipping ahead pays off."""

_CAUTION = 0.98
"""Share of the distance that is skipped: where matches are denser than average, the guess still falls before the page."""

SAMPLE, FEW = 5000, 1000
"""Sample size that tells whether matches are few, and how many count as few."""

LOOKED, MOST = 100_000, 10_000
"""In a long list without an index: how many records are looked at, and how many matches are counted, before giving up."""

_SHORT, _COVERED = 2, 12
"""How many times as many records may be scanned for any query, and entries of an index that covers the query."""

_ROW = "r.id, r.data, r.created_at, r.updated_at"


@frozen
class Paging:
    """Part of a list: `sort` is one of SORTS, `order` is asc or desc."""

    sort: str = "created_at"
    order: str = "desc"
    limit: int = 50
    offset: int = 0

    @property
    def descending(self) -> bool:
        return self.order == "desc"

    @property
    def by(self) -> str:
        """Return the terms of ORDER BY."""
        return f"{self.sort} {self.order}, seq {self.order}"

    def of(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the page of items that are in its order."""
        return items[self.offset : self.offset + self.limit]

    def nearest(self, total: int) -> tuple[Paging, bool]:
        """Return the same rows counted from the nearer end, and whether they come out backwards."""
        limit = max(0, min(self.limit, total - self.offset))
        if self.offset <= total - self.offset - limit:
            return Paging(self.sort, self.order, limit, self.offset), False
        return Paging(self.sort, "asc" if self.descending else "desc", limit, total - self.offset - limit), True


_FIRST = Paging()


@frozen
class PartOfList:
    """A page with the size of its list: `total` matches, or more (`is_more`), among the first `looked` of `everything`."""

    records: list[Json]
    total: int
    looked: int
    everything: int
    is_more: bool = False

    @property
    def is_whole(self) -> bool:
        return not self.is_more and self.looked >= self.everything


def list_records(
    tx: Tx,
    object_id: str,
    conditions: Sequence[Condition] = (),
    page: Paging = _FIRST,
    words: Sequence[Where] = (),
) -> tuple[list[Json], int]:
    """Return the records of a page in wire form, and the total. Equal times are ordered by creation. Raises NotFound for the object;
    BadRequest naming a wrong slug or operator."""
    search = Search(tx, object_id, conditions, words)
    rows, total = search.page(page)
    return wire_of(search.schema, rows), total


def write_list(tx: Tx, object_id: str, conditions: Sequence[Condition], page: Paging) -> bytearray:
    """Return the answer of a list, with the JSON of its records as it is stored: to read and write it again would take half of the time.
    Raises as list_records does."""
    search = Search(tx, object_id, conditions)
    schema, (rows, total) = search.schema, search.page(page)
    answer, waiting = bytearray(b'{"records":['), list(reversed(rows))
    del rows
    # A hundred records may have 100 MB, so each row goes as soon as it is written.
    while waiting:
        record_id, data, *times = waiting.pop()
        answer += record_text(schema.object_id, record_id, schema.shown_json(data), *times).encode()
        answer += b"," if waiting else b""
    answer += f'],"pagination":{{"total":{total},"limit":{page.limit},"offset":{page.offset}}}}}'.encode()
    return answer


def count_records(tx: Tx, object_id: str, conditions: Sequence[Condition] = ()) -> int:
    """Return the exact number of matches. Raises as list_records does."""
    return Search(tx, object_id, conditions).page(Paging(limit=0))[1]


def wire_of(schema: Schema, rows: Sequence[Row]) -> list[Json]:
    # One document of many is parsed in half the time of many documents.
    documents = jsontext.loads(f"[{','.join(row[1] for row in rows)}]")
    return [
        record_tables.record_wire(schema.object_id, record_id, schema.without_leaving(data), created_at, updated_at)
        for (record_id, _, created_at, updated_at), data in zip(rows, documents, strict=True)
    ]


class Search:
    """The records of an object that meet all conditions, of which `words` are in SQL already. Raises as list_records does."""

    def __init__(self, tx: Tx, object_id: str, conditions: Sequence[Condition] = (), words: Sequence[Where] = ()) -> None:
        self.schema = load_schema(tx, object_id)
        self._tx = tx
        self._table = self.schema.table
        self._wheres = [*compile_conditions(conditions, self.schema.attributes, tx.dialect), *words]
        self._where = combine(self._wheres)
        total = "SELECT total FROM record_total WHERE object_id = ?"
        self._everything = tx.remembered(f"total of {self.schema.object_id}", lambda: self._number(total, self.schema.object_id))

    def page(self, page: Paging) -> tuple[Sequence[Row], int]:
        """Return the rows of a page, and the total."""
        source, candidates = self._narrowest()
        if self._are_few(page) and (few := self._few(source, page)):
            return few
        where, total = self._where, self._everything
        if self._wheres:
            count = self._number(f"SELECT count(*) FROM {source} WHERE {where.opposite or where.sql}", *where.params)
            total = total - count if where.opposite else count
            candidates = total if where.index else candidates
        window, is_backwards = page.nearest(total)
        rows = self._rows(window, total, source, candidates) if window.limit else []
        return (rows[::-1] if is_backwards else rows), total

    def part(self, page: Paging, *, is_complete: bool = False) -> PartOfList:
        """Return a page in bounded time: of a long list without an index, only the first LOOKED records are looked at unless
        `is_complete`."""
        wheres, everything = self._wheres, self._everything
        is_answered = len(wheres) == 1 and wheres[0].is_covered
        is_answered = is_answered and (not self._is_blind or self._are_few(page))
        is_complete = is_complete or not wheres or everything <= LOOKED * (_COVERED if is_answered else _SHORT)
        if is_complete or any(map(self._is_narrow, wheres)):
            shown, total = self.page(page)
            return PartOfList(wire_of(self.schema, shown), total, everything, everything)
        most = max(MOST, page.offset + page.limit)
        source, within = self._first_ones(page)
        sql = f"SELECT seq FROM {source} {self._where.sql} ORDER BY {page.by} LIMIT ?"
        rows = self._tx.all(sql, (*within, *self._where.params, most + 1))
        shown = self._at(page, [row[0] for row in page.of(rows)])
        return PartOfList(wire_of(self.schema, shown), min(len(rows), most), LOOKED, everything, len(rows) > most)

    def sorted_part(self, order: Where, page: Paging) -> PartOfList:
        """Return a page in the order of an SQL expression, empty values last. Raises BadRequest for more records than it can sort soon."""
        part = self.part(Paging(limit=0))
        if not part.is_whole or part.total > LOOKED:
            raise BadRequest(f"more than {LOOKED:,} records cannot be sorted by this attribute; filter them first", {"field": "sort"})
        places = {sequence: place for place, sequence in enumerate(page.of(self.sequences(order, page.descending)))}
        rows = all_in(self._tx, f"SELECT seq, {_ROW} FROM {self._table} AS r WHERE seq IN {{}}", list(places))
        return replace(part, records=wire_of(self.schema, [row[1:] for row in sorted(rows, key=lambda row: places[row[0]])]))

    def sequences(self, order: Where, is_descending: bool, most: int | None = None) -> list[int]:
        """Return the sequence numbers of every match, or of the first `most`, in the order of an SQL expression, empty values last."""
        where, direction = self._where, "DESC" if is_descending else "ASC"
        # Every record has its times, which an index sorts.
        last = "" if order.sql in SORTS else "CASE WHEN value IS NULL THEN 1 ELSE 0 END, "
        sql = (
            f"SELECT seq FROM (SELECT seq, {order.sql} AS value FROM {self._table} WHERE {where.sql}) AS sorted "
            f"ORDER BY {last}value {direction}, seq {direction}{'' if most is None else ' LIMIT ?'}"
        )
        return [row[0] for row in self._tx.all(sql, (*order.params, *where.params, *([] if most is None else [most])))]

    def _number(self, sql: str, *params: Any) -> int:
        number: int = required(self._tx.one(sql, params))[0]
        return number

    def _through(self, column: str) -> str:
        """Return the table in a FROM clause that is read through the index of a column."""
        return self._tx.dialect.table_by(self._table, record_tables.index_name(self._table, column))

    @property
    def _is_blind(self) -> bool:
        """Whether there are conditions, and no index leads to any of their rows."""
        return bool(self._wheres) and not any(where.index or where.opposite or _names_one(where) for where in self._wheres)

    def _first_ones(self, window: Paging) -> tuple[str, Row]:
        """Return the first LOOKED records as a FROM clause up to a condition, with its parameters."""
        in_order = self._through(window.sort)
        if not self._tx.dialect.names_indexes:
            # With their end given, an engine that expects few matches would sort those of the whole table.
            return f"(SELECT * FROM {in_order} ORDER BY {window.by} LIMIT ?) AS part WHERE", (LOOKED,)
        end = f"SELECT {window.sort}, seq FROM {in_order} ORDER BY {window.by} LIMIT 1 OFFSET ?"
        compared = ">=" if window.descending else "<="
        return f"{in_order} WHERE ({window.sort}, seq) {compared} (?, ?) AND", required(self._tx.one(end, (LOOKED - 1,)))

    def _is_narrow(self, where: Where) -> bool:
        """Whether an index leads to so few records that all of them can be looked at."""
        if where.index is None:
            return _names_one(where)
        beyond = f"SELECT 1 FROM {self._through(where.index)} WHERE {where.sql} LIMIT 1 OFFSET ?"
        return self._tx.one(beyond, (*where.params, MOST)) is None

    def _are_few(self, window: Paging) -> bool:
        """Whether few rows may match, so that counting and finding them would each take a full scan. Only a long list is worth a sample."""
        if not self._is_blind or not 0 < window.limit <= MAX_IN or window.offset + window.limit > FEW:
            return False
        if self._everything <= 4 * SAMPLE:
            return True
        part = f"SELECT * FROM {self._through(window.sort)} ORDER BY {window.by} LIMIT ?"
        hits = self._number(f"SELECT count(*) FROM ({part}) AS part WHERE {self._where.sql}", SAMPLE, *self._where.params)
        return hits * self._everything <= FEW * SAMPLE

    def _few(self, source: str, window: Paging) -> tuple[Sequence[Row], int] | None:
        """Return the rows of the page and the total, None if more rows match than expected. Orders them at first as the index of the
        condition does."""
        # An engine that expects many rows, and so an early end, would scan with one process.
        matches = f"SELECT seq FROM {source} WHERE {self._where.sql} ORDER BY +seq LIMIT ?"
        keys = [row[0] for row in self._tx.all(matches, (*self._where.params, FEW + 1))]
        if len(keys) > FEW:
            return None
        rows = all_in(self._tx, f"SELECT {window.sort}, seq FROM {self._table} WHERE seq IN {{}}", keys)
        return self._at(window, [seq for _, seq in window.of(sorted(rows, reverse=window.descending))]), len(keys)

    def _at(self, window: Paging, keys: Sequence[int]) -> Sequence[Row]:
        """Return the rows with these sequence numbers in the window's order."""
        marks = ", ".join("?" * len(keys))
        return self._tx.all(f"SELECT {_ROW} FROM {self._table} AS r WHERE seq IN ({marks}) ORDER BY {window.by}", keys) if keys else []

    def _narrowest(self) -> tuple[str, int]:
        """Return the source and number of rows that several conditions share: the index of the condition that matches fewest. An index that
        leads to over a tenth of the table is no better than the table."""
        dialect, everything = self._tx.dialect, self._everything
        if len(self._wheres) < 2 or not dialect.names_indexes:
            return self._table, everything
        # The index of a wide condition leads to rows one by one, in no order: a scan of the table is many times as fast.
        source = self._table if any(map(_names_one, self._wheres)) else dialect.table_alone(self._table)
        fewest, bound = everything, everything // 10
        for where in self._wheres:
            if where.index is not None:
                through = self._through(where.index)
                sql = f"SELECT count(*) FROM (SELECT 1 FROM {through} WHERE {where.sql} LIMIT ?) AS counted"
                if (count := self._number(sql, *where.params, bound)) < bound:
                    source, fewest, bound = through, count, count
        return source, fewest

    def _rows(self, window: Paging, total: int, source: str, candidates: int) -> Sequence[Row]:
        where, window = self._skip_ahead(window, total)
        in_order, plus = self._through(window.sort), ""
        # Either walk the list in its order until enough rows matched, or gather and sort all matches: the total tells which is cheaper.
        if not self._wheres or (window.offset + window.limit) * self._everything / total < candidates + total:
            source = in_order
        else:
            plus = "+"  # keeps an engine from gathering through the index of the order
        if where.is_pinned and window.sort == "created_at":
            source, plus = self._table, ""
        order = window.order
        return self._tx.all(
            f"SELECT {_ROW} FROM (SELECT seq AS key, {window.sort} AS moment FROM {source} WHERE {where.sql} "
            f"ORDER BY {plus}{window.sort} {order}, {plus}seq {order} LIMIT ? OFFSET ?) AS page "
            f"JOIN {self._table} AS r ON r.seq = page.key ORDER BY page.moment {order}, page.key {order}",
            (*where.params, window.limit, window.offset),
        )

    def _skip_ahead(self, window: Paging, total: int) -> tuple[Where, Paging]:
        """Return the conditions and the page, counted from a moment shortly before it, so that a far page begins near the start.

        The moment is guessed as if matches were spread evenly. The index of the condition, which also holds the time of creation, counts
        those before it; a guess past the page is dropped.
        """
        where = self._where
        if window.offset < DEEP or window.sort != "created_at" or where.index is None or where.is_pinned:
            return where, window
        before, since = (">", "<=") if window.descending else ("<", ">=")
        place = int(window.offset * _CAUTION * self._everything / total)
        moment = self._number(f"SELECT created_at FROM {self._through('created_at')} ORDER BY {window.by} LIMIT 1 OFFSET ?", place)
        counted = f"SELECT count(*) FROM {self._table} WHERE {where.sql} AND created_at {before} ?"
        passed = self._number(counted, *where.params, moment)
        if passed > window.offset:
            return where, window
        rest = replace(where, sql=f"{where.sql} AND created_at {since} ?", params=(*where.params, moment))
        return rest, replace(window, offset=window.offset - passed)


def _names_one(where: Where) -> bool:
    """Whether a condition names one id, which is never wide; the engine finds that index by itself."""
    return where.sql.startswith("id ")
