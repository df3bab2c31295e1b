"""`crmctl demo`: the whole run as a document and on a terminal. It leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from crmctl.cli.commands import demo
from crmctl.errors import CrmctlError
from crmctl.output.streams import Streams
from tests.support.cli import CRMCTL, expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE
from tests.support.warm_program import warm_program

SHOWN = [
    "$ crmctl serve",
    "✓ logged in",
    "reports     1 created",
    "300 valid, 0 invalid",
    "rows       300: 300 created",
    "@acme.com",
    "exported 300 records",
    "300 records hold exactly what the file says",
    "customer   ██",
    "listening on http://127.0.0.1:",
    "got all of them back unchanged, and cleaned up",
]


@pytest.mark.campaign
def test_the_demonstration_on_a_terminal(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "CRMCTL_API_KEY": "crs_mine", "CRMCTL_READ_ONLY": "1"}
    code, printed = expect_exit(spawn("demo", env=env, columns=100, timeout=PATIENCE))
    assert code == 0, printed
    assert "\x1b[1m# Sign in." in printed
    said = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert [shown for shown in SHOWN if shown not in said] == []
    assert "crs_" not in said
    assert list(tmp_path.iterdir()) == []
    assert not Path(os.environ["CRMCTL_CONFIG_DIR"]).exists()


def test_as_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    monkeypatch.setattr(demo, "CRMCTL", (str(tmp_path / "bin/crmctl"),))
    shown = run_here("demo", "-o", "json").ok()
    document = shown.json()
    assert (document["imported"], document["exported"], document["differences"]) == (300, 300, 0)
    assert [expected for expected in SHOWN[:-1] if expected not in shown.err] == []
    assert "\x1b" not in shown.err


def test_a_command_that_fails_ends_the_run_with_its_exit_code(tmp_path: Path) -> None:
    streams = Streams(None, None, io.StringIO(), {})
    with pytest.raises(CrmctlError, match="crmctl objects list ended with 2") as failed:
        demo.Stage(tmp_path, streams, "stderr").ask("objects", "list")
    assert failed.value.exit_code == 2
