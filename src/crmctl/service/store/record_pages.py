"""One page of an object's records with the exact total.

Counts come from a counter or an index, keys before rows, far pages from the far end. Few matches without an index are found and counted in
one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json, JsonText
from crmctl.service.faults import BadRequest
from crmctl.service.store import record_tables
from crmctl.service.store.condition_sql import EVERYTHING, Where, combine, compile_conditions
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


@frozen
class _Search:
    """Prepared conditions. `source` is the FROM clause with the fewest rows, `candidates` their number, `total` the matches once counted.

    `is_blind` means that no index leads to any of the rows.
    """

    schema: Schema
    where: Where
    source: str
    candidates: int
    everything: int
    is_blind: bool = False
    total: int = 0


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
    def direction(self) -> str:
        return self.order.upper()

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
    schema = load_schema(tx, object_id)
    rows, total = _list_rows(tx, schema, _compiled(tx, schema, conditions, words), page)
    return wire_of(schema, rows), total


def write_list(tx: Tx, object_id: str, conditions: Sequence[Condition], page: Paging) -> JsonText:
    """Return the answer of a list, with the JSON of its records as it is stored: to read and write it again would take half of the time.
    Raises as list_records does."""
    schema = load_schema(tx, object_id)
    rows, total = _list_rows(tx, schema, _compiled(tx, schema, conditions), page)
    texts = (record_text(schema.object_id, record_id, schema.shown_json(data), *times) for record_id, data, *times in rows)
    pagination = f'{{"total":{total},"limit":{page.limit},"offset":{page.offset}}}'
    return JsonText(f'{{"records":[{",".join(texts)}],"pagination":{pagination}}}')


def _compiled(tx: Tx, schema: Schema, conditions: Sequence[Condition], words: Sequence[Where] = ()) -> list[Where]:
    return [*compile_conditions(conditions, schema.attributes, tx.dialect), *words]


def _list_rows(tx: Tx, schema: Schema, wheres: Sequence[Where], page: Paging) -> tuple[Sequence[Row], int]:
    search = _prepare(tx, schema, wheres)
    if _are_few(tx, search, page) and (page_found := _few(tx, search, page)):
        return page_found
    search = _counted(tx, search)
    window, is_backwards = page.nearest(search.total)
    rows = _page(tx, search, window) if window.limit else []
    return (rows[::-1] if is_backwards else rows), search.total


def list_part(
    tx: Tx, object_id: str, conditions: Sequence[Condition] = (), page: Paging = _FIRST, words: Sequence[Where] = ()
) -> PartOfList:
    """Return a page in bounded time: of a long list without an index, only the first LOOKED records are looked at. Raises as list_records
    does."""
    schema = load_schema(tx, object_id)
    wheres, everything = _compiled(tx, schema, conditions, words), _everything(tx, schema)
    is_answered = len(wheres) == 1 and wheres[0].is_covered
    if is_answered and not (wheres[0].index or wheres[0].opposite):
        is_answered = _are_few(tx, _prepare(tx, schema, wheres), page)
    bound = LOOKED * (_COVERED if is_answered else _SHORT)
    if not wheres or everything <= bound or any(_is_narrow(tx, schema, where) for where in wheres):
        shown, total = _list_rows(tx, schema, wheres, page)
        return PartOfList(wire_of(schema, shown), total, everything, everything)
    where, most = combine(wheres), max(MOST, page.offset + page.limit)
    source, within = _first_ones(tx, schema, page)
    ordered = f"ORDER BY {page.sort} {page.direction}, seq {page.direction} LIMIT ?"
    rows = tx.all(f"SELECT seq FROM {source} {where.sql} {ordered}", (*within, *where.params, most + 1))
    shown = _at(tx, schema, page, [row[0] for row in rows[page.offset : page.offset + page.limit]])
    return PartOfList(wire_of(schema, shown), min(len(rows), most), LOOKED, everything, len(rows) > most)


def list_sorted(
    tx: Tx, object_id: str, order: Where, conditions: Sequence[Condition] = (), page: Paging = _FIRST, words: Sequence[Where] = ()
) -> PartOfList:
    """Return a page in the order of an SQL expression, empty values last. Raises BadRequest for more records than can be sorted soon."""
    schema = load_schema(tx, object_id)
    part = list_part(tx, object_id, conditions, Paging(limit=0), words)
    if not part.is_whole or part.total > LOOKED:
        raise BadRequest(f"more than {LOOKED:,} records cannot be sorted by this attribute; filter them first", {"field": "sort"})
    sequences = all_sequences(tx, object_id, order, page.order == "desc", conditions, words)
    places = {sequence: place for place, sequence in enumerate(sequences[page.offset : page.offset + page.limit])}
    rows = all_in(tx, f"SELECT seq, {_ROW} FROM {schema.table} AS r WHERE seq IN {{}}", list(places))
    return replace(part, records=wire_of(schema, [row[1:] for row in sorted(rows, key=lambda row: places[row[0]])]))


def all_sequences(
    tx: Tx,
    object_id: str,
    order: Where,
    is_descending: bool,
    conditions: Sequence[Condition],
    words: Sequence[Where] = (),
    most: int | None = None,
) -> list[int]:
    """Return the sequence numbers of every match, or of the first `most`, in the order of an SQL expression, empty values last."""
    schema, direction = load_schema(tx, object_id), "DESC" if is_descending else "ASC"
    where = combine(_compiled(tx, schema, conditions, words))
    # Every record has its times, which an index sorts.
    last = "" if order.sql in SORTS else "CASE WHEN value IS NULL THEN 1 ELSE 0 END, "
    sql = (
        f"SELECT seq FROM (SELECT seq, {order.sql} AS value FROM {schema.table} WHERE {where.sql}) AS sorted "
        f"ORDER BY {last}value {direction}, seq {direction}{'' if most is None else ' LIMIT ?'}"
    )
    return [row[0] for row in tx.all(sql, (*order.params, *where.params, *([] if most is None else [most])))]


def count_records(tx: Tx, object_id: str, conditions: Sequence[Condition] = ()) -> int:
    """Return the exact number of matches. Raises as list_records does."""
    return list_records(tx, object_id, conditions, Paging(limit=0))[1]


def _prepare(tx: Tx, schema: Schema, wheres: Sequence[Where]) -> _Search:
    everything = _everything(tx, schema)
    if not wheres:
        return _Search(schema, EVERYTHING, schema.table, everything, everything)
    source, candidates = _narrowest(tx, schema, wheres, everything)
    is_blind = not any(where.index or where.opposite or _names_one(where) for where in wheres)
    return _Search(schema, combine(wheres), source, candidates, everything, is_blind)


def _everything(tx: Tx, schema: Schema) -> int:
    def read() -> int:
        total: int = required(tx.one("SELECT total FROM record_total WHERE object_id = ?", (schema.object_id,)))[0]
        return total

    return tx.remembered(f"total of {schema.object_id}", read)


def _first_ones(tx: Tx, schema: Schema, window: Paging) -> tuple[str, Row]:
    """Return the first LOOKED records as a FROM clause up to a condition, with its parameters."""
    in_order = tx.dialect.table_by(schema.table, record_tables.index_name(schema.table, window.sort))
    ordered = f"ORDER BY {window.sort} {window.direction}, seq {window.direction} LIMIT ?"
    if not tx.dialect.names_indexes:
        # With their end given, an engine that expects few matches would sort those of the whole table.
        return f"(SELECT * FROM {in_order} {ordered}) AS part WHERE", (LOOKED,)
    last = required(tx.one(f"SELECT {window.sort}, seq FROM {in_order} {ordered} OFFSET ?", (1, LOOKED - 1)))
    return f"{in_order} WHERE ({window.sort}, seq) {'>=' if window.descending else '<='} (?, ?) AND", last


def _is_narrow(tx: Tx, schema: Schema, where: Where) -> bool:
    """Whether an index leads to so few records that all of them can be looked at."""
    if where.index is None:
        return _names_one(where)
    through = tx.dialect.table_by(schema.table, record_tables.index_name(schema.table, where.index))
    beyond = tx.one(f"SELECT 1 FROM {through} WHERE {where.sql} LIMIT 1 OFFSET ?", (*where.params, MOST))
    return beyond is None


def _counted(tx: Tx, search: _Search) -> _Search:
    where = search.where
    if where is EVERYTHING:
        return replace(search, total=search.everything)
    count: int = required(tx.one(f"SELECT count(*) FROM {search.source} WHERE {where.opposite or where.sql}", where.params))[0]
    total = search.everything - count if where.opposite else count
    return replace(search, total=total, candidates=total if where.index else search.candidates)


def _names_one(where: Where) -> bool:
    """Whether a condition names one id, which is never wide; the engine finds that index by itself."""
    return where.sql.startswith("id ")


def _are_few(tx: Tx, search: _Search, window: Paging) -> bool:
    """Whether few rows may match, so that counting and finding them would each take a full scan. Only a long list is worth a sample."""
    if not search.is_blind or not 0 < window.limit <= MAX_IN or window.offset + window.limit > FEW:
        return False
    if search.everything <= 4 * SAMPLE:
        return True
    in_order = tx.dialect.table_by(search.schema.table, record_tables.index_name(search.schema.table, window.sort))
    part = f"SELECT * FROM {in_order} ORDER BY {window.sort} {window.direction}, seq {window.direction} LIMIT ?"
    hits: int = required(tx.one(f"SELECT count(*) FROM ({part}) AS part WHERE {search.where.sql}", (SAMPLE, *search.where.params)))[0]
    return hits * search.everything <= FEW * SAMPLE


def _few(tx: Tx, search: _Search, window: Paging) -> tuple[Sequence[Row], int] | None:
    """Return the rows of the page and the total, None if more rows match than expected. Orders them at first as the index of the condition
    does."""
    table = search.schema.table
    # An engine that expects many rows, and so an early end, would scan with one process.
    matches = f"SELECT seq FROM {search.source} WHERE {search.where.sql} ORDER BY +seq LIMIT ?"
    keys = [row[0] for row in tx.all(matches, (*search.where.params, FEW + 1))]
    if len(keys) > FEW:
        return None
    ordered = sorted(all_in(tx, f"SELECT {window.sort}, seq FROM {table} WHERE seq IN {{}}", keys), reverse=window.descending)
    return _at(tx, search.schema, window, [seq for _, seq in ordered[window.offset : window.offset + window.limit]]), len(keys)


def _at(tx: Tx, schema: Schema, window: Paging, keys: Sequence[int]) -> Sequence[Row]:
    """Return the rows with these sequence numbers in the window's order."""
    marks, direction = ", ".join("?" * len(keys)), window.direction
    page = f"SELECT {_ROW} FROM {schema.table} AS r WHERE seq IN ({marks}) ORDER BY {window.sort} {direction}, seq {direction}"
    return tx.all(page, keys) if keys else []


def _narrowest(tx: Tx, schema: Schema, wheres: Sequence[Where], everything: int) -> tuple[str, int]:
    """Return the source and number of rows that several conditions share: the index of the condition that matches fewest. An index that
    leads to over a tenth of the table is no better than the table."""
    if len(wheres) == 1 or not tx.dialect.names_indexes:
        return schema.table, everything
    # The index of a wide condition leads to rows one by one, in no order: a scan of the table is many times as fast.
    table = schema.table if any(map(_names_one, wheres)) else tx.dialect.table_alone(schema.table)
    source, fewest, bound = table, everything, everything // 10
    for where in wheres:
        if where.index is None:
            continue
        through = tx.dialect.table_by(schema.table, record_tables.index_name(schema.table, where.index))
        counted = f"SELECT count(*) FROM (SELECT 1 FROM {through} WHERE {where.sql} LIMIT ?) AS counted"
        count: int = required(tx.one(counted, (*where.params, bound)))[0]
        if count < bound:
            source, fewest, bound = through, count, count
    return source, fewest


def _page(tx: Tx, search: _Search, window: Paging) -> Sequence[Row]:
    search, window = _skip_ahead(tx, search, window)
    source, plus = _plan(tx, search, window)
    direction = window.direction
    return tx.all(
        f"SELECT {_ROW} FROM "
        f"(SELECT seq AS key, {window.sort} AS moment FROM {source} WHERE {search.where.sql} "
        f"ORDER BY {plus}{window.sort} {direction}, {plus}seq {direction} LIMIT ? OFFSET ?) AS page "
        f"JOIN {search.schema.table} AS r ON r.seq = page.key ORDER BY page.moment {direction}, page.key {direction}",
        (*search.where.params, window.limit, window.offset),
    )


_ROW = "r.id, r.data, r.created_at, r.updated_at"


def wire_of(schema: Schema, rows: Sequence[Row]) -> list[Json]:
    # One document of many is parsed in half the time of many documents.
    documents = jsontext.loads(f"[{','.join(row[1] for row in rows)}]")
    return [
        record_tables.record_wire(schema.object_id, record_id, schema.without_leaving(data), created_at, updated_at)
        for (record_id, _, created_at, updated_at), data in zip(rows, documents, strict=True)
    ]


def _skip_ahead(tx: Tx, search: _Search, window: Paging) -> tuple[_Search, Paging]:
    """Return the same page, counted from a moment shortly before it, so that a far page begins near the start.

    The moment is guessed as if matches were spread evenly. The index of the condition, which also holds the time of creation, counts those
    before it; a guess past the page is dropped.
    """
    where = search.where
    if window.offset < DEEP or window.sort != "created_at" or where.index is None or where.is_pinned:
        return search, window
    direction, (before, since) = window.direction, (">", "<=") if window.descending else ("<", ">=")
    in_order = tx.dialect.table_by(search.schema.table, record_tables.index_name(search.schema.table, "created_at"))
    place = int(window.offset * _CAUTION * search.everything / search.total)
    moment = required(
        tx.one(f"SELECT created_at FROM {in_order} ORDER BY created_at {direction}, seq {direction} LIMIT 1 OFFSET ?", (place,))
    )[0]
    counted = f"SELECT count(*) FROM {search.schema.table} WHERE {where.sql} AND created_at {before} ?"
    passed: int = required(tx.one(counted, (*where.params, moment)))[0]
    if passed > window.offset:
        return search, window
    rest = replace(where, sql=f"{where.sql} AND created_at {since} ?", params=(*where.params, moment))
    return replace(search, where=rest), replace(window, offset=window.offset - passed)


def _plan(tx: Tx, search: _Search, window: Paging) -> tuple[str, str]:
    """Return the FROM clause for the page's keys, and a prefix for the sort terms.

    Either walk the list in its order until enough rows matched, or gather and sort all matches: the total tells which is cheaper. A unary
    plus keeps an engine from gathering through the index of the order.
    """
    table = search.schema.table
    in_order = tx.dialect.table_by(table, record_tables.index_name(table, window.sort))
    if search.where is EVERYTHING:
        return in_order, ""
    if search.where.is_pinned and window.sort == "created_at":
        return table, ""
    walked = (window.offset + window.limit) * search.everything / search.total
    return (in_order, "") if walked < search.candidates + search.total else (search.source, "+")
