"""Look-ups of keys: crmctl finds every key, across the blocks it reads, by the cheaper of two ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.answers import Page
from crmctl.files.spills import CHUNK_ROWS
from crmctl.match.key_lookups import Lookup
from crmctl.match.keys import KeyIndex, KeyRule, key_rule
from crmctl.models.resources import Record
from crmctl.read.read_back import Baseline, Reader
from crmctl.values.moments import micros_of
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID, BulkServer
from tests.support.keydesk import KeyDesk, counts


def rule() -> KeyRule:
    return key_rule(["code"], [attribute("code")])


@pytest.fixture
def index() -> Iterator[KeyIndex]:
    with KeyIndex(rule()) as index:
        yield index


def code(n: int) -> str:
    return f"k{n:05}"


def key(text: str) -> str:
    found = rule().key({"code": text})
    assert found is not None
    return found


def record(n: int, text: str) -> Record:
    return Record.parse({"id": f"00000000-0000-4000-8000-{n:012}", "data": {"code": text}})


@pytest.mark.parametrize("count", [1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS, 2 * CHUNK_ROWS + 1])
def test_every_row_and_every_key_comes_once_past_any_block(index: KeyIndex, count: int) -> None:
    for n in range(count):
        index.want(n, {"code": code(n)}, lines=(n + 2, n + 2))
    index.see(record(n, code(n)) for n in range(count))
    assert index.key_count == count
    assert list(index.distinct()) == [key(code(n)) for n in range(count)]
    assert [(row.ordinal, row.line, row.key) for row in index.rows()] == [(n, n + 2, key(code(n))) for n in range(count)]
    assert [(row, first) for row, first, _ in index.matches()] == [(n, record(n, "").id) for n in range(count)]


def test_rows_of_one_key_and_records_of_one_key(index: KeyIndex) -> None:
    for n in range(1, 1203):
        index.want(n, {"code": "same" if n % 2 else code(n)}, lines=(n, n))
    index.see([record(9, "same"), record(3, "same"), record(4, code(4)), record(5, "of nobody")])
    assert (index.first(key("same")).ordinal, index.last(key("same")).ordinal) == (1, 1201)
    assert [one for one, _ in index.found(key("same"))] == [record(3, "").id, record(9, "").id]
    assert [(row, first) for row, first, _ in index.matches()] == sorted(
        [(n, record(3, "").id) for n in range(1, 1203, 2)] + [(4, record(4, "").id)]
    )
    index.see([record(3, "moved away")])
    assert [one for one, _ in index.found(key("same"))] == [record(9, "").id]
    assert index.found(key("of nobody")) == []


@pytest.mark.parametrize(("count", "singly"), [(1, True), (3, True), (4, False)])
def test_few_keys_are_filtered_and_never_more_than_pages(index: KeyIndex, count: int, singly: bool) -> None:
    server = BulkServer()  # 200 records are three pages of 99 new ones each; the end is read twice, then the changes
    ids = server.seed([{"code": code(n)} for n in range(200)])
    for n in range(count):
        index.want(n, {"code": code(n)}, lines=(n, n))
    lookup = Lookup(server.crm(), OBJECT_ID)
    lookup.fill(index)
    asked = [read for read in server.reads if any(name.startswith("filter[code]") for name in read)]
    assert len(asked) == (count if singly else 0)
    assert lookup.requests == len(server.reads)
    assert [(row, first) for row, first, _ in index.matches()] == [(n, ids[n]) for n in range(count)]


class Burst:
    """A list whose records all changed shortly before crmctl reads them, newest first."""

    def __init__(self, count: int) -> None:
        self.moments = [f"2026-01-01T00:00:{second:09.6f}Z" for second in (n * 3 / count for n in range(count, 0, -1))]

    def list_records(self, *_: object, limit: int = 50, offset: int = 0, **__: object) -> Page[Record]:
        named = enumerate(self.moments[offset : offset + limit], offset)
        items = [Record.parse({"id": f"r{n}", "data": {}, "createdAt": when, "updatedAt": when}) for n, when in named]
        return Page(items, len(self.moments), 0, 100)

    def change(self) -> None:
        self.moments = ["2026-01-01T00:00:04.000000Z", *self.moments[:-1]]


def test_records_written_in_a_burst_are_read_once(index: KeyIndex) -> None:
    burst, now, counts = Burst(1000), 0.0, []
    lookup = Lookup(burst, OBJECT_ID, now=lambda: now)
    lookup.as_of = micros_of(burst.moments[0]) or 0
    for now in (0.0, 1.0, 6.0, 7.0, 60.0):  # noqa: B007 - read by the lambda
        before = lookup.requests
        assert lookup.refresh(index.see)
        counts.append(lookup.requests - before)
    assert counts[0] == counts[1] == counts[2] > 10, "until the margin is over something may come late"
    assert counts[3] == counts[4] <= 2
    burst.change()
    lookup.refresh(index.see)
    assert lookup.as_of == micros_of(burst.moments[0])


@pytest.mark.parametrize("count", [100, 290])
def test_a_total_that_counts_the_items_of_the_page_hides_no_record(tmp_path: Path, count: int) -> None:
    server = BulkServer()
    page = server.page

    def counted(query: dict[str, list[str]]) -> dict[str, Any]:
        answer = page(query)
        return {**answer, "pagination": {"total": len(answer["records"])}}

    server.page = counted  # type: ignore[method-assign]
    server.seed([{"email": f"p{n}@acme.com"} for n in range(count)])
    assert not Baseline.of(Reader(server.crm(), OBJECT_ID).page()).is_whole
    text = "Email,n\n" + "".join(f"p{n}@acme.com,{n}\n" for n in range(count + 10))
    assert counts(KeyDesk(server, tmp_path).load(text, "email")) == {"updated": count, "created": 10}
