"""`auth login --oidc` and `auth explain`: each source of identity tokens, kept keys, renewal, one error for each failure."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.clock import SystemClock
from tests.support.cli import Result, run_crmctl
from tests.support.issuer import Issuer
from tests.support.service import RunningService, running_service


class Ahead(SystemClock):
    """A clock that the test advances."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
def issuer(clock: Ahead) -> Iterator[Issuer]:
    with Issuer(clock.now) as running:
        yield running


@pytest.fixture
def service(tmp_path: Path, issuer: Issuer, clock: Ahead) -> Iterator[RunningService]:
    with running_service(tmp_path / "service", clock=clock) as running:
        github = ("--github", "acme/data", "--repository-id", "123", "--issuer", issuer.url, "--dev", "--ttl", "5m")
        scopes = [word for scope in ("objects:read", "attributes:read", "records:read", "records:write") for word in ("--scope", scope)]
        run_crmctl("service", "trust", "add", "ci", *github, *scopes, "--data", running.data_dir).ok()
        yield running


def on_github(issuer: Issuer) -> dict[str, str]:
    return {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/token?a=b", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "runner-secret"}


def log_in(service: RunningService, environ: dict[str, str], *options: str) -> Result:
    address = () if "--base-url" in options else ("--base-url", service.base_url)
    return run_crmctl("auth", "login", "--oidc", *address, *options, "-o", "json", env=environ)


def exchanges(service: RunningService) -> int:
    return sum(entry["path"] == "/oauth/token" and entry["status"] == 200 for entry in service.log)


def test_a_job_of_github_logs_in_and_keeps_its_key(service: RunningService, issuer: Issuer) -> None:
    environ = on_github(issuer)
    done = log_in(service, environ).ok()
    assert (done.json()["keySource"], exchanges(service)) == ("oidc", 1)
    for _ in range(2):
        assert run_crmctl("records", "count", "people", env=environ).ok().json() == {"count": 0}
    assert exchanges(service) == 1
    [kept] = Path(os.environ["CRMCTL_CACHE_DIR"]).glob("oidc-*.json")
    assert kept.stat().st_mode & 0o077 == 0
    document = json.loads(kept.read_text())
    kept.write_text(json.dumps(document | {"renewAt": 0}))
    said = run_crmctl("records", "count", "people", "--debug", env=environ).ok()
    assert exchanges(service) == 2
    assert document["key"] not in said.err
    assert "runner-secret" not in said.err
    run_crmctl("records", "count", "people", env={**environ, "CRMCTL_API_KEY": service.key}).ok()
    assert exchanges(service) == 2


def test_tokens_in_a_variable_and_in_a_file(service: RunningService, issuer: Issuer) -> None:
    log_in(service, {"CRMCTL_ID_TOKEN": issuer.token(service.base_url)}).ok()
    Path("token").write_text(issuer.token(service.base_url) + "\n")
    log_in(service, {"CRMCTL_ID_TOKEN_FILE": "token", "CRMCTL_ID_TOKEN": "not this one"}).ok()
    assert exchanges(service) == 2


def test_another_job_on_the_same_machine_does_not_get_the_kept_key(service: RunningService, issuer: Issuer) -> None:
    log_in(service, {"CRMCTL_ID_TOKEN": issuer.token(service.base_url)}).ok()
    run_crmctl("records", "count", "people").ok()
    foreign = {"CRMCTL_ID_TOKEN": issuer.token(service.base_url, repository_id="666")}
    run_crmctl("records", "count", "people", env=foreign).exits(4)
    run_crmctl("records", "count", "people", env={"CRMCTL_ID_TOKEN": issuer.token(service.base_url)}).ok()
    assert exchanges(service) == 2


ROWS = 1200


def import_while_keys_expire(service: RunningService, clock: Ahead, expires: Callable[[int], bool], environ: dict[str, str]) -> Result:
    """Import ROWS people. Before each request of which `expires` accepts the number, the clock passes the end of the key."""
    read, requests = service.engine.read, count(1)

    def expire(fn: Any, **options: Any) -> Any:
        clock.offset += 400 * (bool(options.get("single")) and expires(next(requests)))
        return read(fn, **options)

    service.engine.read = expire
    Path("people.csv").write_text("email\n" + "".join(f"p{number}@example.com\n" for number in range(ROWS)))
    done = run_crmctl("bulk", "import", "people", "people.csv", "--concurrency", "1", "--mirror", "never", env=environ)
    del service.engine.read
    return done


def test_an_import_outlives_its_key_five_times(service: RunningService, issuer: Issuer, clock: Ahead) -> None:
    environ = on_github(issuer)
    log_in(service, environ).ok()
    summary = import_while_keys_expire(service, clock, lambda requests: requests % 4 == 0, environ).ok().json()
    assert (summary["created"], summary["rows"]) == (ROWS, ROWS)
    assert exchanges(service) >= 6
    assert service.client.get(f"/api/v1/objects/{service.object_id('people')}/records").json()["pagination"]["total"] == ROWS


def test_an_import_whose_key_github_does_not_renew_stops_and_knows_all_rows(service: RunningService, issuer: Issuer, clock: Ahead) -> None:
    environ = on_github(issuer)
    log_in(service, environ).ok()
    refusing = environ | {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{service.base_url}/nothing"}
    stopped = import_while_keys_expire(service, clock, lambda requests: requests == 10, refusing).exits(4)  # among the batches
    assert stopped.error()["message"] == "this job has no identity token"
    summary = stopped.json()
    assert (summary["created"] + summary["unsent"], summary["inDoubt"], summary["failed"]) == (ROWS, 0, 0)


@pytest.mark.parametrize("fault", ["closed", "error"])
def test_an_import_whose_renewal_is_lost_knows_all_rows_and_continues(
    service: RunningService, issuer: Issuer, clock: Ahead, fault: str
) -> None:
    environ = on_github(issuer)
    log_in(service, environ).ok()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}/token"
    failing = environ | {"ACTIONS_ID_TOKEN_REQUEST_URL": {"closed": closed, "error": f"{issuer.url}/broken"}[fault]}
    stopped = import_while_keys_expire(service, clock, lambda requests: requests == 10, failing).exits(6)
    assert stopped.error()["message"].startswith("the API key has expired, and no new one came: ")
    summary = stopped.json()
    assert (summary["created"] + summary["unsent"], summary["inDoubt"], summary["failed"]) == (ROWS, 0, 0)
    run_crmctl("bulk", "resume", summary["job"], env=environ).ok()
    assert service.client.get(f"/api/v1/objects/{service.object_id('people')}/records").json()["pagination"]["total"] == ROWS


def test_claims_are_explained_and_compared(service: RunningService, issuer: Issuer) -> None:
    token = issuer.token(service.base_url, event_name="pull_request")
    words, environ = ("auth", "explain", "--base-url", service.base_url, "-o", "json"), {"CRMCTL_API_KEY": service.key}
    shown = run_crmctl(*words, env=environ | {"CRMCTL_ID_TOKEN": token}).ok()
    document = shown.json()
    assert (document["source"], document["claims"]["repository_id"]) == ("CRMCTL_ID_TOKEN", "123")
    assert document["trusts"] == [{"name": "ci", "problem": "ci: event_name is pull_request"}]
    assert token.rpartition(".")[2] not in shown.out
    good = run_crmctl(*words, env=environ | {"CRMCTL_ID_TOKEN": issuer.token(service.base_url)}).ok().json()
    assert good["trusts"] == [{"name": "ci", "problem": None}]


def test_claims_are_compared_with_the_trusts_of_the_service_by_a_key_that_may_read_them(service: RunningService, issuer: Issuer) -> None:
    token = issuer.token(service.base_url, repository_id="666")
    keys = {"full": service.key, "narrow": service.key_for(["members:read"]), "none": ""}
    shown = {}
    for name, key in keys.items():
        environ = {"CRMCTL_ID_TOKEN": token, "CRMCTL_API_KEY": key}
        shown[name] = run_crmctl("auth", "explain", "--base-url", service.base_url, "-o", "json", env=environ).ok().json().get("trusts")
    assert shown == {"full": [{"name": "ci", "problem": "ci: repository_id is not 123"}], "narrow": None, "none": None}
    assert exchanges(service) == 0


def test_a_refused_token_stores_nothing(service: RunningService, issuer: Issuer) -> None:
    token = issuer.token(service.base_url, repository_id="666")
    refused = log_in(service, {"CRMCTL_ID_TOKEN": token}).exits(4)
    assert refused.error()["message"] == f"{service.base_url} does not accept the identity token of this job (invalid_grant)"
    assert token not in refused.err
    assert list(Path(os.environ["CRMCTL_CACHE_DIR"]).glob("oidc-*.json")) == []
    assert run_crmctl("auth", "list", "-o", "json").ok().json() == []


@pytest.mark.parametrize(
    ("environ", "options", "code", "said"),
    [
        ({}, (), 4, "this job has no identity token"),
        ({"CRMCTL_ID_TOKEN_FILE": "absent"}, (), 4, "cannot read CRMCTL_ID_TOKEN_FILE absent"),
        ({}, ("--with-key",), 2, "--oidc needs no key"),
        ({"CRMCTL_ID_TOKEN": "x"}, ("--base-url", "http://crm.example.com"), 2, "tokens and keys are not sent without TLS"),
    ],
)
def test_without_a_token(service: RunningService, environ: dict[str, str], options: tuple[str, ...], code: int, said: str) -> None:
    refused = log_in(service, environ, *options).exits(code)
    assert said in refused.error()["message"]


def test_text_that_is_no_token_is_not_explained(service: RunningService) -> None:
    words = ("auth", "explain", "--base-url", service.base_url, "-o", "json")
    refused = run_crmctl(*words, env={"CRMCTL_ID_TOKEN": "hello"}).exits(2)
    assert refused.error()["message"] == "CRMCTL_ID_TOKEN holds no identity token"
