"""`crmctl org verify --drill`: the folder is restored to a throw-away service and compared."""

from __future__ import annotations

from pathlib import Path

from crmctl.org.folder import OrgFolder
from crmctl.org.verify import drill_differences
from tests.org.test_diff import lines_of, write_lines
from tests.support.cli import run_crmctl
from tests.support.organizations import furnish
from tests.support.service import RunningService


def test_a_drill_restores_everything(crm: RunningService) -> None:
    furnish(crm, 41)
    run_crmctl("org", "pull", "crm").ok()
    done = run_crmctl("org", "verify", "crm", "--drill").ok()
    assert done.json() == []
    assert "was restored and is the same" in done.err
    assert {path.name for path in Path().iterdir()} >= {"crm"}


def test_every_difference_is_found(crm: RunningService) -> None:
    furnish(crm, 42)
    for folder in ("crm", "other"):
        run_crmctl("org", "pull", folder).ok()
    assert drill_differences(OrgFolder(Path("crm")), OrgFolder(Path("other")), {}) == []
    people = lines_of(Path("other/records/people.jsonl"))
    people[0]["data"]["job_title"] = "Changed"
    write_lines(Path("other/records/people.jsonl"), people[:-1])
    problems = drill_differences(OrgFolder(Path("crm")), OrgFolder(Path("other")), {})
    assert [problem["problem"][:12] for problem in problems] == ["restored dif", "not restored", "not restored"]
    assert {problem["place"] for problem in problems} == {"people", "records/people.jsonl:1", f"records/people.jsonl:{len(people)}"}
