"""`crmctl bulk import --mirror`: crmctl syncs the mirror, then looks up keys and references in it.

A kept index can be wrong in three ways (decision 39), and each has a test: deletions, a restored backup, and another service at the
address.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import run_crmctl
from tests.support.service import RunningService, ServiceProcess, service_process

ROWS = 450
IMPORT = ("bulk", "import", "people", "people.csv", "--key", "email")


def file(score: int = 1, count: int = ROWS) -> None:
    Path("people.csv").write_text("Email,Score\n" + "".join(f"p{n}@acme.com,{score}\n" for n in range(count)), encoding="utf-8")


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    return {name: document[name] for name in ("created", "updated", "unchanged") if document[name]}


def synced() -> dict[str, int]:
    """Count the syncs of each object."""
    return {one["object"]: one["syncs"] for one in run_crmctl("mirror", "status").ok().json()}


def test_keys_and_references_come_from_the_mirror(crm: RunningService) -> None:
    run_crmctl("bulk", "import", "companies", "-", "--again", input="Name\n" + "".join(f"Firm {n}\n" for n in range(300))).ok()
    Path("people.csv").write_text(
        "Email,company.name\n" + "".join(f"p{n}@acme.com,Firm {n % 300}\n" for n in range(ROWS)), encoding="utf-8"
    )
    assert counts(run_crmctl(*IMPORT).ok().json()) == {"created": ROWS}
    run_crmctl("mirror", "sync", "people", "companies").ok()
    assert counts(run_crmctl(*IMPORT, "--mirror", "never").ok().json()) == {"unchanged": ROWS}
    assert synced() == {"companies": 1, "people": 1}
    crm.log.clear()
    done = run_crmctl(*IMPORT).ok()
    assert counts(done.json()) == {"unchanged": ROWS}
    for name in ("people", "companies"):
        assert re.search(rf"^{name} from the mirror, as of (\d{{4}}-\d\d-\d\d )?\d\d:\d\d$", done.err, re.MULTILINE), "local time"
    assert synced() == {"companies": 2, "people": 2}
    schema_and_newest = 4
    assert len(requests_of(crm)) - schema_and_newest <= done.json()["requests"] <= len(requests_of(crm))
    assert run_crmctl(*IMPORT, "--mirror", "only", "--dry-run").ok().json()["unchanged"] == ROWS


def test_without_a_mirror_only_mirror_only_is_refused(crm: RunningService) -> None:
    file()
    refused = run_crmctl(*IMPORT, "--mirror", "only").exits(2)
    assert (refused.error()["code"], {method for method, _ in requests_of(crm)}) == ("no_mirror", {"GET"})
    assert counts(run_crmctl(*IMPORT).ok().json()) == {"created": ROWS}
    run_crmctl("mirror", "sync", "people", "--exclude", "people.score").ok()
    assert run_crmctl(*IMPORT, "--mirror", "only").exits(2).error()["code"] == "excluded_attribute"
    told = run_crmctl(*IMPORT).ok()
    assert counts(told.json()) == {"unchanged": ROWS}
    assert "the mirror cannot be used: it leaves out people.score" in told.err


def test_a_deleted_record_is_made_again(crm: RunningService) -> None:
    file()
    run_crmctl(*IMPORT).ok()
    run_crmctl("mirror", "sync", "people").ok()
    (gone,) = run_crmctl("records", "list", "people", "--filter", "email=p7@acme.com", "-q", "[].id").ok().json()
    run_crmctl("records", "delete", "people", gone, "--yes").ok()
    assert counts(run_crmctl(*IMPORT, "--mirror", "only").ok().json()) == {"created": 1, "unchanged": ROWS - 1}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "service"


def env(service: ServiceProcess) -> dict[str, str | None]:
    return {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}


def test_a_restored_backup_and_another_service_are_read_anew(elsewhere: Path) -> None:
    file()
    with service_process(elsewhere, "--rate-limit", "0") as service:
        run_crmctl(*IMPORT, env=env(service)).ok()
        port, key = service.base_url.rpartition(":")[2], service.key
    shutil.copytree(elsewhere, elsewhere.with_name("backup"))
    with service_process(elsewhere, "--rate-limit", "0", "--port", port, key=key) as service:
        file(2)
        assert counts(run_crmctl(*IMPORT, env=env(service)).ok().json()) == {"updated": ROWS}
        run_crmctl("mirror", "sync", "people", env=env(service)).ok()
    with service_process(elsewhere.with_name("backup"), "--rate-limit", "0", "--port", port, key=key) as service:
        assert counts(run_crmctl(*IMPORT, env=env(service)).ok().json()) == {"updated": ROWS}
    with service_process(elsewhere.with_name("other"), "--rate-limit", "0", "--port", port) as service:
        assert counts(run_crmctl(*IMPORT, env=env(service)).ok().json()) == {"created": ROWS}
