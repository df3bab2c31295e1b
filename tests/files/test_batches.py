"""Batches: every row once, in order, within the limits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from crmctl.files.validation import Batch, Batcher, Entry, entry_of
from crmctl.models import jsontext
from tests.support.bulkjobs import Prepared

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
ROWS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=60)


def batches(rows: list[dict[str, Any]], max_rows: int, max_bytes: int) -> list[Batch]:
    batcher = Batcher(max_rows, max_bytes)
    entries = [entry_of(Prepared(number, data), with_id=False) for number, data in enumerate(rows, 1)]
    return list(batcher.batches(entries))


@given(ROWS, st.integers(1, 20), st.integers(1, 300))
def test_rows_stay_in_order_and_batches_within_limits(rows: list[dict[str, Any]], max_rows: int, max_bytes: int) -> None:
    made = batches(rows, max_rows, max_bytes)
    assert [jsontext.loads(record) for batch in made for record in batch.records] == [{"data": row} for row in rows]
    assert [ordinal for batch in made for ordinal in batch.ordinals] == list(range(1, len(rows) + 1))
    for batch in made:
        assert 1 <= len(batch) <= max_rows
        assert batch.size <= max_bytes or len(batch) == 1
        assert batch.size == sum(map(len, batch.records))
    for one, two in pairwise(made):
        assert len(one) == max_rows or one.size + len(two.entries[0].encoded) > max_bytes


@given(st.integers(2, 100))
def test_halves_are_the_batch(size: int) -> None:
    whole = Batch(tuple(entry_of(Prepared(n, {"n": n}), with_id=False) for n in range(size)))
    first, second = whole.halves()
    assert first.entries + second.entries == whole.entries
    assert abs(len(first) - len(second)) <= 1


def test_an_id_is_sent_only_where_it_means_something() -> None:
    row = Prepared(1, {"n": 1}, id="abc")
    assert entry_of(row, with_id=False) == Entry(1, b'{"data":{"n":1}}')
    assert entry_of(row, with_id=True) == Entry(1, b'{"data":{"n":1},"id":"abc"}', "abc")
    assert entry_of(Prepared(1, {"n": 1}), with_id=True) == Entry(1, b'{"data":{"n":1}}')


def test_the_digest_tells_contents_and_order_apart() -> None:
    rows = [{"n": 1}, {"n": 2}, {"n": 12}]
    digests = {batches(order, 9, 999)[0].digest for order in ([rows[0], rows[1]], [rows[1], rows[0]], [rows[2]], rows)}
    assert len(digests) == 4
