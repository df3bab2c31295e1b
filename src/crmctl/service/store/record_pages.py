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
from crmctl.service.store.tx import MAX_IN, Row, Tx, required

SORTS = record_tables.MOMENTS
ORDERS = ("asc", "desc")

DEEP = 1000
"""Offset from which a page is worth a look at where it may begin."""

_CAUTION = 0.98
"""Share of the way that is skipped: where the matches are a little denser than on the average, the guess is still before the page."""

SAMPLE, FEW = 5000, 1000
"""How many rows tell whether those that match are few, and how many few are."""

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


def list_records(
    tx: Tx,
    object_id: str,
    conditions: Sequence[Condition] = (),
    page: Paging = _FIRST,
) -> tuple[list[dict[str, Any]], int]:
    """The records of one page in wire form, and how many match in all. Equal times are ordered by sequence of creation.

    Raises NotFound for the object; BadRequest naming the slug, operator, sort or order that is wrong.
    """
    if page.sort not in SORTS:
        raise BadRequest(f"sort must be one of: {', '.join(SORTS)}", {"field": "sort", "valid": list(SORTS)})
    if page.order not in ORDERS:
        raise BadRequest(f"order must be one of: {', '.join(ORDERS)}", {"field": "order", "valid": list(ORDERS)})
    if page.limit < 0 or page.offset < 0:
        raise BadRequest("limit and offset must not be negative", {"field": "limit" if page.limit < 0 else "offset"})
    search, asked = _prepare(tx, load_schema(tx, object_id), conditions), _Window(page.sort, page.order == "desc", page.limit, page.offset)
    if _are_few(tx, search, asked):
        return _few(tx, search, asked)
    search = _counted(tx, search)
    window, is_backwards = asked.nearest(search.total)
    records = _page(tx, search, window) if window.limit else []
    return (records[::-1] if is_backwards else records), search.total


def count_records(tx: Tx, object_id: str, conditions: Sequence[Condition] = ()) -> int:
    """Exact. Raises as list_records does."""
    return list_records(tx, object_id, conditions, Paging(limit=0))[1]


def count_some(tx: Tx, object_id: str, conditions: Sequence[Condition], most: int) -> int:
    """Exact up to `most`, where it ends."""
    search = _prepare(tx, load_schema(tx, object_id), conditions)
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {search.source} WHERE {search.where.sql} LIMIT ?) AS counted"
    count: int = required(tx.one(counted, (*search.where.params, most)))[0]
    return count


def _prepare(tx: Tx, schema: Schema, conditions: Sequence[Condition]) -> _Search:
    wheres = compile_conditions(conditions, schema.attributes, tx.dialect)
    everything: int = required(tx.one("SELECT total FROM record_total WHERE object_id = ?", (schema.object_id,)))[0]
    if not wheres:
        return _Search(schema, _EVERYTHING, schema.table, everything, everything)
    source, candidates = _narrowest(tx, schema, wheres, everything)
    is_blind = not any(where.index or where.opposite or _names_one(where) for where in wheres)
    return _Search(schema, combine(wheres), source, candidates, everything, is_blind)


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


def _few(tx: Tx, search: _Search, window: _Window) -> tuple[list[dict[str, Any]], int]:
    """The page and the total; only where more match than it seemed they are counted after all."""
    direction = window.direction
    first = f"SELECT seq FROM {search.source} WHERE {search.where.sql} ORDER BY +{window.sort} {direction}, +seq {direction} LIMIT ?"
    keys = [row[0] for row in tx.all(first, (*search.where.params, FEW + 1))]
    chosen = keys[window.offset : window.offset + window.limit]
    marks = ", ".join("?" * len(chosen))
    page = f"SELECT {_ROW} FROM {search.schema.table} AS r WHERE seq IN ({marks}) ORDER BY {window.sort} {direction}, seq {direction}"
    rows = tx.all(page, chosen) if chosen else []
    return _wire(search.schema, rows), len(keys) if len(keys) <= FEW else _counted(tx, search).total


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
