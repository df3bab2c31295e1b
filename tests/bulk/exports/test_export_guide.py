"""docs/guides/warehouse-export.md works, every command of it, in the order and in the shell a reader would type it in."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import CRMCTL, environment
from tests.support.service import running_service
from tests.support.sources import ROOT

GUIDE = (ROOT / "docs" / "guides" / "warehouse-export.md").read_text(encoding="utf-8")
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.needs("bash")
@pytest.mark.needs("python3")
def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    with running_service(tmp_path / "service") as service:
        path = f"/api/v1/objects/{service.object_id('people')}/records/bulk"
        rows = [{"data": {"email": f"p{number}@acme.com", "score": number}} for number in range(40)]
        assert service.client.post(path, json={"records": rows}).json()["created"] == 40
        env = environment({
            "PATH": f"{CRMCTL.parent}:/usr/bin:/bin", "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key,
        })  # fmt: skip
        said = {}
        for number, command in enumerate(COMMANDS):
            run = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=120, check=False)
            assert run.returncode == 0, (command, run.stderr)
            said[number] = run.stdout
    assert len(COMMANDS) == 6
    assert said[2].startswith("40 rows as of 20")
    assert Path("changes.jsonl").read_text() == ""
