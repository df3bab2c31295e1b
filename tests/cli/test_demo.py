"""`crmctl demo`: the whole show, off a terminal, leaving nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cli import run_crmctl


def test_the_demonstration(tmp_path: Path) -> None:
    shown = run_crmctl("demo", env={"TMPDIR": str(tmp_path), "CRMCTL_API_KEY": "crs_mine", "CRMCTL_READ_ONLY": "1"}).ok()
    for expected in ("$ crmctl serve", "rows       300: 300 created", "@acme.com", "DK 36", "0 differences", "cleaned up"):
        assert expected in shown.out
    assert list(tmp_path.iterdir()) == []
    assert not Path(os.environ["CRMCTL_CONFIG_DIR"]).exists()


def test_as_a_document(tmp_path: Path) -> None:
    shown = run_crmctl("demo", "-o", "json", env={"TMPDIR": str(tmp_path)}).ok()
    document = shown.json()
    assert (document["imported"], document["exported"], document["differences"]) == (300, 300, 0)
    assert "$ crmctl bulk import" in shown.err
