"""The OpenAPI document against the running service: schemathesis drives every operation and finds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.service import running_service

# What these take depends on what is stored (the attributes of the object, whether a referenced thing exists), which no schema can say:
# a 400 is a proper answer to a request that fits the schema. Every other check holds for them as for all operations.
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


@pytest.mark.long
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
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
