"""One page of an object's records and the exact total: counts from a counter or an index, keys before rows, far pages from the far end.

What few records match and no index leads to is found and counted in one go.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crmctl.models.filters import Condition
from crmctl.service.faults import BadRequest
from crmctl.service.store import record_tables
from crmctl.service.store.conditions import Where, combine, compile_conditions
from crmctl.service.store.schema import Schema, load_schema
from crmctl.service.store.timestamps import to_wire
from crmctl.service.store.tx import MAX_IN, Row, Tx, all_in, required

SORTS = record_tables.MOMENTS
ORDERS = ("asc", "desc")

DEEP = 1000
"""Offset from which a page is worth a look at where it may begin."""

_CAUTION = 0.98
"""Share of the way that is skipped: where the matches are a little denser than on the average, the guess is still before the page."""

SAMPLE, FEW = 5000, 1000
"""How many rows tell whether those that match are few, and how many few are."""

LOOKED, MOST = 100_000, 10_000
"""Of a long list that no index answers: how many records are looked at, and how many matches are counted, before it is left at that."""

_SHORT, _COVERED = 2, 12
"""How many times as many records are gone through whatever is asked, and how many entries of an index that holds all that is compared."""

_EVERYTHING = Where("1 = 1")


@dataclass(frozen=True)
class _Window:
    """Which rows, counted from which end."""

    sort: str
    descending: bool
    limit: int
    offset: int

    @property
    def direction(self) -> str:
        return "DESC" if self.descending else "ASC"

    def nearest(self, total: int) -> tuple[_Window, bool]:
        """The same rows counted from the nearer end, and whether they then come out backwards."""
        limit = max(0, min(self.limit, total - self.offset))
        if self.offset <= total - self.offset - limit:
            return _Window(self.sort, self.descending, limit, self.offset), False
        return _Window(self.sort, not self.descending, limit, total - self.offset - limit), True


@dataclass(frozen=True)
class _Search:
    """Conditions made ready: through `source`, a FROM clause, the fewest rows must be looked at; `candidates` is how many those are.

    `is_blind`: no index leads to any of them. `total` is known once they are counted.
    """

    schema: Schema
    where: Where
    source: str
    candidates: int
    everything: int
    is_blind: bool = False
    total: int = 0


@dataclass(frozen=True)
class Paging:
    """Which part of a list: `sort` is one of SORTS, `order` one of ORDERS."""

    sort: str = "created_at"
    order: str = "desc"
    limit: int = 50
    offset: int = 0


_FIRST = Paging()


@dataclass(frozen=True)
class PartOfList:
    """One page, and what is known of all of them: `total` match, or `is_more` than that, among the first `looked` of `everything`."""

    records: list[dict[str, Any]]
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
) -> tuple[list[dict[str, Any]], int]:
    """The records of one page in wire form, and how many match in all. Equal times are ordered by sequence of creation.

    Raises NotFound for the object; BadRequest naming the slug, operator, sort or order that is wrong.
    """
    asked = _window(page)
    search = _prepare(tx, load_schema(tx, object_id), conditions)
    if _are_few(tx, search, asked) and (found := _few(tx, search, asked)):
        return found
    search = _counted(tx, search)
    window, is_backwards = asked.nearest(search.total)
    records = _page(tx, search, window) if window.limit else []
    return (records[::-1] if is_backwards else records), search.total


def list_part(tx: Tx, object_id: str, conditions: Sequence[Condition] = (), page: Paging = _FIRST) -> PartOfList:
    """As list_records, but in a time that is bounded: of a long list that no index answers, the first LOOKED records are looked at.

    Raises as list_records does.
    """
    asked, schema = _window(page), load_schema(tx, object_id)
    wheres = compile_conditions(conditions, schema.attributes, tx.dialect)
    everything = _everything(tx, schema)
    is_answered = len(wheres) == 1 and wheres[0].is_covered
    if is_answered and not (wheres[0].index or wheres[0].opposite):
        is_answered = _are_few(tx, _prepare(tx, schema, conditions), asked)
    bound = LOOKED * (_COVERED if is_answered else _SHORT)
    if not wheres or everything <= bound or any(_is_narrow(tx, schema, each) for each in wheres):
        return PartOfList(*list_records(tx, object_id, conditions, page), everything, everything)
    where, most = combine(wheres), max(MOST, page.offset + page.limit)
    source, within = _first_ones(tx, schema, asked)
    ordered = f"ORDER BY {asked.sort} {asked.direction}, seq {asked.direction} LIMIT ?"
    found = tx.all(f"SELECT seq FROM {source} {where.sql} {ordered}", (*within, *where.params, most + 1))
    records = _at(tx, schema, asked, [row[0] for row in found[page.offset : page.offset + page.limit]])
    return PartOfList(records, min(len(found), most), LOOKED, everything, len(found) > most)


def count_records(tx: Tx, object_id: str, conditions: Sequence[Condition] = ()) -> int:
    """Exact. Raises as list_records does."""
    return list_records(tx, object_id, conditions, Paging(limit=0))[1]


def _prepare(tx: Tx, schema: Schema, conditions: Sequence[Condition]) -> _Search:
    wheres = compile_conditions(conditions, schema.attributes, tx.dialect)
    everything = _everything(tx, schema)
    if not wheres:
        return _Search(schema, _EVERYTHING, schema.table, everything, everything)
    source, candidates = _narrowest(tx, schema, wheres, everything)
    is_blind = not any(where.index or where.opposite or _names_one(where) for where in wheres)
    return _Search(schema, combine(wheres), source, candidates, everything, is_blind)


def _window(page: Paging) -> _Window:
    """Raises BadRequest."""
    if page.sort not in SORTS:
        raise BadRequest(f"sort must be one of: {', '.join(SORTS)}", {"field": "sort", "valid": list(SORTS)})
    if page.order not in ORDERS:
        raise BadRequest(f"order must be one of: {', '.join(ORDERS)}", {"field": "order", "valid": list(ORDERS)})
    if page.limit < 0 or page.offset < 0:
        raise BadRequest("limit and offset must not be negative", {"field": "limit" if page.limit < 0 else "offset"})
    return _Window(page.sort, page.order == "desc", page.limit, page.offset)


def _everything(tx: Tx, schema: Schema) -> int:
    total: int = required(tx.one("SELECT total FROM record_total WHERE object_id = ?", (schema.object_id,)))[0]
    return total


def _first_ones(tx: Tx, schema: Schema, window: _Window) -> tuple[str, Row]:
    """The first LOOKED records, as a FROM clause up to a condition, and its parameters."""
    in_order = tx.dialect.table_by(schema.table, record_tables.index_name(schema.table, window.sort))
    ordered = f"ORDER BY {window.sort} {window.direction}, seq {window.direction} LIMIT ?"
    if not tx.dialect.names_indexes:
        # Given their end, an engine that expects few matches would sort those of the whole table.
        return f"(SELECT * FROM {in_order} {ordered}) AS part WHERE", (LOOKED,)
    last = required(tx.one(f"SELECT {window.sort}, seq FROM {in_order} {ordered} OFFSET ?", (1, LOOKED - 1)))
    return f"{in_order} WHERE ({window.sort}, seq) {'>=' if window.descending else '<='} (?, ?) AND", last


def _is_narrow(tx: Tx, schema: Schema, where: Where) -> bool:
    """Whether an index leads to so few records that all of them can be looked at."""
    if where.index is None:
        return _names_one(where)
    through = tx.dialect.table_by(schema.table, record_tables.index_name(schema.table, where.index))
    found = tx.one(f"SELECT 1 FROM {through} WHERE {where.sql} LIMIT 1 OFFSET ?", (*where.params, MOST))
    return found is None


def _counted(tx: Tx, search: _Search) -> _Search:
    where = search.where
    if where is _EVERYTHING:
        return replace(search, total=search.everything)
    count: int = required(tx.one(f"SELECT count(*) FROM {search.source} WHERE {where.opposite or where.sql}", where.params))[0]
    total = search.everything - count if where.opposite else count
    return replace(search, total=total, candidates=total if where.index else search.candidates)


def _names_one(where: Where) -> bool:
    """An id is never wide, and the engine finds its index by itself."""
    return where.sql.startswith("id ")


def _are_few(tx: Tx, search: _Search, window: _Window) -> bool:
    """Whether few rows seem to match, which could only be counted by going through all of them, and then be found by doing so again."""
    if not search.is_blind or search.everything <= 4 * SAMPLE or not 0 < window.limit <= MAX_IN or window.offset + window.limit > FEW:
        return False
    in_order = tx.dialect.table_by(search.schema.table, record_tables.index_name(search.schema.table, window.sort))
    part = f"SELECT * FROM {in_order} ORDER BY {window.sort} {window.direction}, seq {window.direction} LIMIT ?"
    hits: int = required(tx.one(f"SELECT count(*) FROM ({part}) AS part WHERE {search.where.sql}", (SAMPLE, *search.where.params)))[0]
    return hits * search.everything <= FEW * SAMPLE


def _few(tx: Tx, search: _Search, window: _Window) -> tuple[list[dict[str, Any]], int] | None:
    """The page and the total; None where more match than it seemed. In an order at first for which the index of the condition is enough."""
    table = search.schema.table
    # Not in none: an engine that expects many, and so to be done soon, would then look for them with one process.
    found = f"SELECT seq FROM {search.source} WHERE {search.where.sql} ORDER BY +seq LIMIT ?"
    keys = [row[0] for row in tx.all(found, (*search.where.params, FEW + 1))]
    if len(keys) > FEW:
        return None
    ordered = sorted(all_in(tx, f"SELECT {window.sort}, seq FROM {table} WHERE seq IN {{}}", keys), reverse=window.descending)
    return _at(tx, search.schema, window, [seq for _, seq in ordered[window.offset : window.offset + window.limit]]), len(keys)


def _at(tx: Tx, schema: Schema, window: _Window, keys: Sequence[int]) -> list[dict[str, Any]]:
    """The records with these sequence numbers, in the window's order."""
    marks, direction = ", ".join("?" * len(keys)), window.direction
    page = f"SELECT {_ROW} FROM {schema.table} AS r WHERE seq IN ({marks}) ORDER BY {window.sort} {direction}, seq {direction}"
    return _wire(schema, tx.all(page, keys)) if keys else []


def _narrowest(tx: Tx, schema: Schema, wheres: Sequence[Where], everything: int) -> tuple[str, int]:
    """Where to look for rows that several conditions share, and how many are there: in the index of the condition that matches fewest.

    An index that leads to more than a tenth of all rows is no better than the whole table.
    """
    if len(wheres) == 1 or not tx.dialect.names_indexes:
        return schema.table, everything
    # Of wide conditions, an index leads to most rows one by one, in no order: going through the table once is many times as fast.
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


def _page(tx: Tx, search: _Search, window: _Window) -> list[dict[str, Any]]:
    search, window = _skip_ahead(tx, search, window)
    source, plus = _plan(tx, search, window)
    direction = window.direction
    rows = tx.all(
        f"SELECT {_ROW} FROM "
        f"(SELECT seq AS key, {window.sort} AS moment FROM {source} WHERE {search.where.sql} "
        f"ORDER BY {plus}{window.sort} {direction}, {plus}seq {direction} LIMIT ? OFFSET ?) AS page "
        f"JOIN {search.schema.table} AS r ON r.seq = page.key ORDER BY page.moment {direction}, page.key {direction}",
        (*search.where.params, window.limit, window.offset),
    )
    return _wire(search.schema, rows)


_ROW = "r.id, r.data, r.created_at, r.updated_at"


def _wire(schema: Schema, rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "id": record_id,
            "objectId": schema.object_id,
            "data": schema.values_in(data),
            "createdAt": to_wire(created_at),
            "updatedAt": to_wire(updated_at),
        }
        for record_id, data, created_at, updated_at in rows
    ]


def _skip_ahead(tx: Tx, search: _Search, window: _Window) -> tuple[_Search, _Window]:
    """The same page, counted from a moment shortly before it: a far page of many matches then begins near the start.

    The moment is guessed as if the matches were spread evenly over the list; how many come before it is counted in the index of the
    condition, which holds the time of creation beside the value. A guess that is past the page is dropped.
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


def _plan(tx: Tx, search: _Search, window: _Window) -> tuple[str, str]:
    """How to find the page's keys: the FROM clause, and a prefix for the sort terms.

    Either walk the list in its order until enough rows matched, or gather all matches and sort them: the total tells which is cheaper.
    A unary plus keeps an engine from taking the order's index for the gathering.
    """
    table = search.schema.table
    in_order = tx.dialect.table_by(table, record_tables.index_name(table, window.sort))
    if search.where is _EVERYTHING:
        return in_order, ""
    if search.where.is_pinned and window.sort == "created_at":
        return table, ""
    walked = (window.offset + window.limit) * search.everything / search.total
    return (in_order, "") if walked < search.candidates + search.total else (search.source, "+")
