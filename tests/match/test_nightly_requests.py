"""A nightly import with a mirror reads nothing that the command has just read."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import nightly_requests as nightly


@pytest.mark.campaign
def test_a_nightly_import_reads_nothing_twice(tmp_path: Path) -> None:
    context, ids = nightly.filled(tmp_path, 5000)
    nightly.first_syncs(context, ids)
    nightly.a_day(context, ids, deleted=2)
    nightly.write(tmp_path / "people.csv", 5000, 1)
    everything = nightly.measured(context, "night", file=str(tmp_path / "people.csv"), mirror="only")
    asked = context.service.asked
    assert (asked["objects"], asked["attributes"], asked["bulk"]) == (1, 1, 1)
    what_changed, changes, deletions, what_was_proven_and_what_came_since = 1, 2, 2 * 6, 2
    assert asked["list records"] <= what_changed + changes + deletions + what_was_proven_and_what_came_since
    assert everything == sum(asked.values())
    nightly.a_day(context, ids[:1] + ids[2:], deleted=1)
    assert nightly.measured(context, "quiet night", file=str(tmp_path / "people.csv"), mirror="only") < everything
