"""Schemathesis calls every operation of the OpenAPI document on a running service and finds no contradiction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.service import running_service

# These operations depend on stored data (the attributes of the object, whether a referenced record exists), which no schema can express:
# 400 is a correct answer to a request that fits the schema. Every other check applies to them as to all operations.
DEPENDS_ON_THE_DATA = (
    "create_record",
    "update_record",
    "delete_record",
    "search_records",
    "create_attribute",
    "edit_attribute_options",
    "create_activity",
    "update_activity",
    "create_upload_url",
    "load_definitions",
)

EXCEPTION = """
[[operations]]
include-operation-id = "{}"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "403", "404", "409", "412"]
"""


@pytest.mark.campaign
@pytest.mark.long
def test_schemathesis_finds_no_contradiction(tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text("".join(map(EXCEPTION.format, DEPENDS_ON_THE_DATA)), encoding="utf-8")
    with running_service(tmp_path / "data", background=False) as service:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{service.base_url}/openapi.json"),
                *("--header", f"Authorization: Bearer {service.key}", "--phases", "coverage,fuzzing", "--max-examples", "2"),
                *("--seed", "20270115", "--continue-on-failure", "--generation-database", "none", "--no-color"),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE * 5,
            check=False,
            cwd=tmp_path,
        )
        tested = {(entry["method"], entry["status"]) for entry in service.log}
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert {("GET", 200), ("POST", 201), ("PATCH", 200), ("DELETE", 200), ("POST", 400)} <= tested
    assert not [status for _, status in tested if status >= 500]
