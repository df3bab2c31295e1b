"""The examples of docs/python.md run, in order, as one program on a throw-away service."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.cli import environment
from tests.support.service import running_service
from tests.support.sources import ROOT

PAGE = ROOT / "docs" / "python.md"


def test_every_example_runs(tmp_path: Path) -> None:
    program = tmp_path / "examples.py"
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) >= 7
    program.write_text("\n".join(examples), encoding="utf-8")
    with running_service(tmp_path / "service") as service:
        env = environment({"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key})
        done = subprocess.run([sys.executable, program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Ada Lovelace" in done.stdout
    assert "there is no object 'planets'" in done.stdout
    assert (tmp_path / "people.csv").read_text().count("@acme.com") == 2
