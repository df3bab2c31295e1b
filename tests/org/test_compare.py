"""The tables in which organizations are compared and cut to a subset."""

from __future__ import annotations

from crmctl.org.compare import OrgTables, Side
from crmctl.org.folder import ACTIVITY_ROWS, OrgRow
from crmctl.values.object_spec import AttributeSpec, ObjectSpec

PEOPLE = ObjectSpec(slug="people", attributes=[AttributeSpec(slug="manager", type="reference", config={"allowed_object": "people"})])


def subset_steps(count: int) -> int:
    """Return how many thousand steps SQLite takes for a subset: half of these people and activities, in long chains of references."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with OrgTables([PEOPLE]) as tables:
        for number in range(count):
            manager = {"manager": f"p{number - 2}"} if number > 1 else {}
            tables.add(Side.LEFT, OrgRow("people", f"p{number}", {"email": f"{number}@example.org", **manager}))
            tables.add(Side.LEFT, OrgRow(ACTIVITY_ROWS, f"a{number}", {"title": "Call", "links": [f"people/p{number}"]}))
        tables._db.set_progress_handler(step, 1000)
        assert tables.keep_only([("people", f"p{count - 1}")]) == {"people.manager": count // 2 - 1}
        assert tables.count(Side.LEFT, "people") == tables.count(Side.LEFT, ACTIVITY_ROWS) == count // 2
    return steps


def test_the_work_for_a_subset_grows_with_its_size_and_not_faster() -> None:
    assert subset_steps(4000) < 20 * subset_steps(400)
