"""The tasks of an administrator: each takes one or two commands, prints what the page says, and sends about as many requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import CRMCTL
from tests.support.pages import open_shell
from tests.support.service import running_service
from tests.support.tasks import carry_out, read_tasks
from tests.support.warm_program import warm_program


def test_the_page_has_42_tasks_of_one_or_two_commands() -> None:
    _, tasks = read_tasks()
    assert [task.number for task in tasks] == list(range(1, 43))
    for task in tasks:
        assert 1 <= len(task.commands) <= 2, task.number
        assert task.requests is not None, f"task {task.number} has no measure: python benchmarks/everyday_tasks.py"


@pytest.mark.needs("bash", "python3")
def test_each_task_works_as_the_page_says(tmp_path: Path) -> None:
    """Requests may grow by a quarter and two before the page must be measured again. Its seconds depend on the machine."""
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    with running_service(Path.cwd() / "crm") as service:
        known = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
        with open_shell(Path.cwd(), known, tmp_path / "bin") as shell:
            measured = [(task.number, task.requests or 0, count) for task, count, _ in carry_out(shell, service)]
    assert [(number, said, count) for number, said, count in measured if count > said + said // 4 + 2] == []
