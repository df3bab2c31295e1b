"""Metrics: what strangers ask for must not make them grow, and who may see them is the operator's choice."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from crmctl.service.context import ListenAddress
from tests.support.cli import run_crmctl
from tests.support.service import running_service, service_process
from tests.support.wire import Wire


def test_invented_methods_and_paths_make_no_lines(tmp_path: Path) -> None:
    with running_service(tmp_path, background=False) as service, Wire(service.base_url, service.key) as wire:

        def ask(turn: int) -> list[str]:
            for number in range(40):
                name = f"X{turn}X{number}"
                for line in (
                    f"{name} /healthz",
                    f"{name} /api/v1/members",
                    f"GET /{name}",
                    f"GET /console/{name}",
                    f"GET /files/{name}/a",
                    f"{name} /{name}",
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


def test_metrics_can_have_an_address_of_their_own(tmp_path: Path) -> None:
    with service_process(tmp_path / "data", "--metrics", "127.0.0.1:0", "--docs", "off") as service, service.client() as client:
        assert client.get("/api/v1/members").status_code == 200
        for path in ("/metrics", "/openapi.json"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["error"]) == (404, "not_found")
        metrics = service.ready["metricsUrl"]
        with httpx.Client(trust_env=False) as apart:
            assert 'route="/api/v1/members",status="200"} 1.0' in apart.get(metrics).text
            assert apart.get(metrics.replace("/metrics", "/healthz")).status_code == 404
            assert apart.get(metrics.replace("/metrics", "/api/v1/members")).status_code == 401
        assert service.stop() == 0


def test_metrics_and_docs_can_be_switched_off(tmp_path: Path) -> None:
    with running_service(tmp_path, metrics=False, docs=False, background=False) as service:
        assert [service.client.get(path).status_code for path in ("/metrics", "/openapi.json", "/healthz")] == [404, 404, 200]


def test_an_address_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    with running_service(tmp_path / "one", metrics=ListenAddress("127.0.0.1", 0), background=False) as service:
        refused = run_crmctl("serve", "--data", tmp_path / "two", "--port", "0", "--metrics", f"127.0.0.1:{service.port}").exits(2)
    assert "--metrics" in refused.error()["hint"]


@pytest.mark.parametrize("options", [("--metrics", "yes"), ("--metrics", "localhost:"), ("--metrics", ":9187"), ("--docs", "none")])
def test_what_is_neither_on_nor_off_nor_an_address_is_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    assert options[0] in run_crmctl("serve", "--data", tmp_path, *options).exits(2).error()["message"]
