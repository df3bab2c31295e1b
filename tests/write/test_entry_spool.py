"""The rows of a job on disk: readable from any row on, kept only if complete, and private."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from crmctl.files.validation import Entry
from crmctl.write.sender import EntrySpool

ROWS = [Entry(n, b'{"data": {"n": "%s"}}' % (b"x" * (n % 97)), f"id-{n}" if n % 5 == 0 else None) for n in range(1, 4001) if n % 7]


@pytest.mark.parametrize("block", [1, 50, 1000, 4000])
def test_rows_are_found_from_any_place_on(tmp_path: Path, block: int) -> None:
    with EntrySpool(tmp_path) as spool:
        for at in range(0, len(ROWS), block):
            spool.add(ROWS[at : at + block])
        for place in [1, 2, 7, 3999, 4000, 4001, *random.Random(block).sample(range(4000), 20)]:
            expected = [entry for entry in ROWS if entry.ordinal >= place][:3]
            found = spool.since(place)
            assert [entry for _, entry in zip(expected, found, strict=False)] == expected
        first, second = spool.since(1), spool.since(2000)
        assert [next(first), next(second), next(first)] == [ROWS[0], next(row for row in ROWS if row.ordinal >= 2000), ROWS[1]]


def test_only_a_complete_spool_is_kept(tmp_path: Path) -> None:
    with EntrySpool(tmp_path) as spool:
        spool.add(ROWS)
    assert list(tmp_path.iterdir()) == []
    with EntrySpool(tmp_path) as spool:
        spool.add(ROWS)
        assert EntrySpool.kept(tmp_path, None) is None
        seal = spool.keep()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    kept = EntrySpool.kept(tmp_path, seal)
    assert kept is not None
    with kept:
        assert list(kept.since(1)) == ROWS
        EntrySpool.discard(tmp_path)
    assert EntrySpool.kept(tmp_path, seal) is None


@pytest.mark.parametrize("harm", ["cut", "cut at a line", "longer", "one bit", "unsealed"])
def test_rows_that_were_kept_and_changed_since_are_none(tmp_path: Path, harm: str) -> None:
    with EntrySpool(tmp_path) as spool:
        spool.add(ROWS)
        seal = spool.keep()
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    line = content.index(b"\n", len(content) // 2) + 1
    changed = {
        "cut": content[:-3],
        "cut at a line": content[:line],
        "longer": content + b"[2,9999,9999,null,null]\n{}\n",
        "unsealed": content,
    }
    file.write_bytes(changed.get(harm, content[:line] + bytes([content[line] ^ 1]) + content[line + 1 :]))
    assert EntrySpool.kept(tmp_path, None if harm == "unsealed" else seal) is None
