"""`crmctl org verify --drill`: the folder is restored to a throw-away service and compared."""

from __future__ import annotations

import shutil
from pathlib import Path

from crmctl.org.compare import drill_differences
from crmctl.org.folder import OrgFolder
from tests.org.test_diff import lines_of, write_lines
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.service import RunningService


def test_a_drill_restores_everything(crm: RunningService) -> None:
    furnish(crm, 41)
    run_here("org", "pull", "crm").ok()
    done = run_here("org", "verify", "crm", "--drill").ok()
    assert done.json() == []
    assert "was restored and is the same" in done.err
    assert {path.name for path in Path().iterdir()} >= {"crm"}


def test_every_difference_is_found(pulled: Path) -> None:
    shutil.copytree(pulled, "other")
    assert drill_differences(OrgFolder(Path("crm")), OrgFolder(Path("other")), {}) == []
    people, activities = (Path("other", name) for name in ("records/people.jsonl", "activities.jsonl"))
    lines = lines_of(people)
    lines[0]["data"]["job_title"] = "Changed"
    write_lines(people, lines)
    gone, *kept = lines_of(activities)
    write_lines(activities, kept)
    report = next(Path("other/reports").iterdir())
    report.write_text(report.read_text().replace("limit: 7", "limit: 8"))
    problems = drill_differences(OrgFolder(Path("crm")), OrgFolder(Path("other")), {})
    assert {(problem["place"], problem["problem"]) for problem in problems} == {
        (f"people {lines[0]['id']}", "restored differently: job_title"),
        (f"activities {gone['id']}", "not restored"),
        ("reports People by name 1", "restored differently: limit"),
    }
