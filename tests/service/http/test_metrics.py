"""Metrics: requests of strangers do not make them grow, and the operator can switch them off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import run_crmctl
from tests.support.service import running_service
from tests.support.wire import Wire


def test_unknown_methods_and_paths_add_no_metrics(tmp_path: Path) -> None:
    with running_service(tmp_path, background=False) as service, Wire(service.base_url, service.key) as wire:

        def ask(turn: int) -> list[str]:
            for number in range(40):
                name = f"X{turn}X{number}"
                for line in (
                    "PROPFIND /healthz",
                    "PROPFIND /api/v1/members",
                    f"GET /{name}",
                    f"GET /console/{name}",
                    f"GET /files/{name}/a",
                    f"PROPFIND /{name}",
                    f"GET /api/v1/objects/{name}",
                ):
                    wire.send(f"{line} HTTP/1.1\r\n{wire.headers}\r\n")
                    assert wire.answer()[0] in (403, 404, 405), line
            return [line.rpartition(" ")[0] for line in service.client.get("/metrics").text.splitlines()]

        ask(0)
        before = ask(1)
        assert ask(2) == before
    assert not [line for line in before if "X1X" in line]
    assert any('method="other"' in line for line in before)


def test_metrics_and_docs_can_be_switched_off(tmp_path: Path) -> None:
    with running_service(tmp_path, metrics=False, docs=False, background=False) as service:
        assert [service.client.get(path).status_code for path in ("/metrics", "/openapi.json", "/healthz")] == [404, 404, 200]


@pytest.mark.parametrize("options", [("--metrics", "yes"), ("--docs", "none")])
def test_values_other_than_on_and_off_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    assert options[0] in run_crmctl("serve", "--data", tmp_path, *options).exits(2).error()["message"]
