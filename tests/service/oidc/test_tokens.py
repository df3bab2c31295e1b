"""Token exchange: it refuses 40 bad tokens, accepts each good one once, and issues keys with scopes and expiry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.service.oidc import token_endpoint
from crmctl.service.oidc.token_endpoint import IssuerKeys, TokenRefused
from crmctl.service.store import short_lived_keys
from tests.support.cli import run_crmctl
from tests.support.issuer import EC_KEY, ED_KEY, OTHER_RSA, RSA_KEY, Issuer, base64url, public_jwk
from tests.support.service import RunningService, running_service

EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
}


@dataclass
class Trusting:
    service: RunningService
    issuer: Issuer

    @property
    def url(self) -> str:
        return self.service.base_url

    def exchange(self, token: str, **form: str) -> httpx.Response:
        return self.service.client.post("/oauth/token", data={**EXCHANGE, "subject_token": token, **form})

    def audit(self, action: str) -> list[dict[str, Any]]:
        return run_crmctl("service", "audit", "--action", action, "--data", self.service.data_dir, "--limit", "500").ok().json()


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusting]:
    with Issuer() as issuer, running_service(tmp_path_factory.mktemp("oidc") / "service") as service:
        add_trust(service.data_dir, issuer)
        yield Trusting(service, issuer)


def add_trust(data: Path, issuer: Issuer, *options: str, name: str = "ci") -> None:
    github = ("--github", "acme/data", "--repository-id", "123", "--workflow", "import.yml", "--issuer", issuer.url, "--dev")
    run_crmctl("service", "trust", "add", name, *github, "--scope", "objects:read", *options, "--data", data).ok()


Forge = Callable[[Issuer, str], str]
NOW = time.time


def claims(**changes: Any) -> Forge:
    return lambda issuer, url: issuer.token(url, **{name: value() if callable(value) else value for name, value in changes.items()})


def tampered(issuer: Issuer, url: str) -> str:
    head, _, signature = issuer.token(url).split(".")
    return f"{head}.{base64url(issuer.claims(url, repository_id='123', actor='eve'))}.{signature}"


FORGED: dict[str, Forge] = {
    "empty parts": lambda *_: "..",
    "no token": lambda *_: "hello",
    "too long": lambda issuer, url: issuer.token(url, padding="x" * 20_000),
    "four parts": lambda issuer, url: issuer.token(url) + ".x",
    "bad base64": lambda *_: "a!b.c!d.e!f",
    "header is a list": lambda issuer, url: f"{base64url([1])}.{base64url(issuer.claims(url))}.x",
    "claims are a list": lambda *_: f"{base64url({'alg': 'RS256', 'kid': 'rsa'})}.{base64url([1])}.{base64url(b'x')}",
    "deep header": lambda issuer, url: f"{base64url(b'[' * 3000)}.{base64url(issuer.claims(url))}.x",
    "alg none": lambda issuer, url: issuer.unsigned(url),
    "alg None": lambda issuer, url: issuer.unsigned(url, "None"),
    "alg NONE with a signature": lambda issuer, url: issuer.unsigned(url, "NONE", b"x"),
    "alg is a list": lambda issuer, url: f"{base64url({'alg': ['RS256'], 'kid': 'rsa'})}.{base64url(issuer.claims(url))}.{base64url(b'x')}",
    "no signature": lambda issuer, url: issuer.unsigned(url, "RS256"),
    "random signature": lambda issuer, url: issuer.unsigned(url, "RS256", b"x" * 256),
    "HS256 with the public key": lambda issuer, url: issuer.signed_with_public_key(url),
    "HS512 with the public key": lambda issuer, url: issuer.signed_with_public_key(url, "HS512"),
    "HMAC with a guessed secret": lambda issuer, url: issuer.token(url, key="secret" * 8, algorithm="HS256"),
    "another key": lambda issuer, url: issuer.token(url, key=OTHER_RSA),
    "RS512": lambda issuer, url: issuer.token(url, algorithm="RS512"),
    "PS256": lambda issuer, url: issuer.token(url, algorithm="PS256"),
    "RS256 with the id of an EC key": lambda issuer, url: issuer.token(url, header={"kid": "ec"}),
    "ES256 with the id of an RSA key": lambda issuer, url: issuer.token(url, key=EC_KEY, algorithm="ES256", header={"kid": "rsa"}),
    "EdDSA with the id of an EC key": lambda issuer, url: issuer.token(url, key=ED_KEY, algorithm="EdDSA", header={"kid": "ec"}),
    "unknown key id": lambda issuer, url: issuer.token(url, header={"kid": "other"}),
    "no key id": lambda issuer, url: issuer.token(url, header={"kid": ""}),
    "critical extension": lambda issuer, url: issuer.token(url, header={"crit": ["b64"], "b64": False}),
    "own key in the header": lambda issuer, url: issuer.token(
        url, key=OTHER_RSA, header={"kid": "mine", "jwk": public_jwk(OTHER_RSA, "RS256", "mine")}
    ),
    "tampered claims": tampered,
    "another issuer": claims(iss="http://127.0.0.1:9"),
    "no issuer": claims(iss=None),
    "issuer with a slash": lambda issuer, url: issuer.token(url, iss=f"{issuer.url}/"),
    "another audience": claims(aud="https://other.example.com"),
    "audience among others": lambda issuer, url: issuer.token(url, aud=[url, "https://other.example.com"]),
    "no audience": claims(aud=None),
    "expired": claims(exp=lambda: int(NOW()) - 100, iat=lambda: int(NOW()) - 500, nbf=None),
    "no expiry": claims(exp=None),
    "an expiry that is no time": claims(exp="never"),
    "an expiry in quotes": claims(exp=lambda: str(int(NOW()) + 500)),
    "an expiry without end": claims(exp=10**300),
    "a start that is true": claims(nbf=True),
    "not valid yet": claims(nbf=lambda: int(NOW()) + 500),
    "issued in the future": claims(iat=lambda: int(NOW()) + 500),
    "no jti": claims(jti=None),
    "another repository id": claims(repository_id="124"),
    "another repository": claims(repository="acme/fork"),
    "no repository id": claims(repository_id=None),
    "another workflow": claims(workflow_ref="acme/data/.github/workflows/evil.yml@refs/heads/main"),
    "a workflow with a longer name": claims(workflow_ref="acme/data/.github/workflows/import.yml2@refs/heads/main"),
    "a pull request": claims(event_name="pull_request"),
    "a pull request of a fork": claims(event_name="pull_request_target", repository="eve/data", repository_id="666"),
    "a comment on a pull request": claims(event_name="pull_request_review_comment"),
    "a pull request of another forge": claims(pipeline_source="external_pull_request_event"),
    "a merge request": claims(pipeline_source="merge_request_event"),
}


def test_forty_bad_tokens_are_refused(trusting: Trusting) -> None:
    assert len(FORGED) >= 40
    noted_before = len(trusting.audit("token.refused"))
    before = run_crmctl("service", "keys", "list", "--data", trusting.service.data_dir).ok().json()
    for name, forge in FORGED.items():
        answer = trusting.exchange(forge(trusting.issuer, trusting.url))
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid_grant"}), name
    assert run_crmctl("service", "keys", "list", "--data", trusting.service.data_dir).ok().json() == before
    noted = [entry["about"]["rule"] for entry in trusting.audit("token.refused")]
    assert len(noted) - noted_before == len(FORGED)
    for rule in (
        "ci: repository_id is not 123",
        "ci: event_name is pull_request",
        "it has expired",
        "its exp is missing or malformed",
        "signature verification failed",
    ):
        assert rule in noted, noted


@pytest.mark.parametrize(("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")])
def test_a_good_token_gets_one_key(trusting: Trusting, key: Any, algorithm: str) -> None:
    token = trusting.issuer.token(trusting.url, key=key, algorithm=algorithm)
    answer = trusting.exchange(token)
    document = answer.json()
    assert (answer.status_code, document["token_type"], document["expires_in"], document["scope"]) == (200, "Bearer", 900, "objects:read")
    assert answer.headers["cache-control"] == "no-store"
    headers = {"Authorization": f"Bearer {document['access_token']}"}
    assert trusting.service.client.get("/api/v1/objects", headers=headers).status_code == 200
    assert trusting.service.client.get("/api/v1/members", headers=headers).status_code == 403
    assert trusting.exchange(token).json() == {"error": "invalid_grant"}
    entry = trusting.audit("token.exchanged")[0]
    assert entry["about"] == {"trust": "ci", "repository": "acme/data", "repository_id": "123", "run_id": "77", "sha": "c0ffee"}


def test_an_audience_may_be_a_list_of_one(trusting: Trusting) -> None:
    assert trusting.exchange(trusting.issuer.token(trusting.url, aud=[trusting.url])).status_code == 200


@pytest.mark.parametrize("run_id", ["a\0b", "\ud800", {"a": [1]}, "x" * 3000])
def test_an_odd_run_id_is_no_obstacle(trusting: Trusting, run_id: Any) -> None:
    assert trusting.exchange(trusting.issuer.token(trusting.url, run_id=run_id)).status_code == 200


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"subject_token": ""}, "invalid_request"),
        ({"subject_token_type": "x"}, "invalid_request"),
    ],
)
def test_other_grant_requests_are_refused(trusting: Trusting, form: dict[str, str], error: str) -> None:
    answer = trusting.exchange("x", **form)
    assert (answer.status_code, answer.json()) == (400, {"error": error})


def test_the_metadata_names_the_endpoint(trusting: Trusting) -> None:
    document = trusting.service.client.get("/.well-known/oauth-authorization-server").json()
    assert (document["issuer"], document["token_endpoint"]) == (trusting.url, f"{trusting.url}/oauth/token")


def test_the_keys_of_an_issuer_are_cached() -> None:
    reads: list[str] = []
    now = 0.0

    def read(address: str) -> bytes:
        reads.append(address)
        about = {"issuer": "https://i.example.com", "jwks_uri": "https://i.example.com/keys", "keys": [{"kid": "a"}]}
        return json.dumps(about).encode()

    keys = IssuerKeys(read, lambda: now)

    def found(key_id: str) -> bool:
        try:
            return keys.find("https://i.example.com", key_id)["kid"] == key_id
        except TokenRefused:
            return False

    history = []
    for moment, key_id in ((0, "a"), (1, "b"), (59, "b"), (61, "b"), (62, "b"), (63, "a"), (3000, "a"), (3700, "a")):
        now = float(moment)
        history.append((moment, found(key_id), reads.count("https://i.example.com/keys")))
    assert history == [
        (0, True, 1), (1, False, 1), (59, False, 1), (61, False, 2), (62, False, 2), (63, True, 2), (3000, True, 2), (3700, True, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--github", "acme/data"), "--github needs --repository-id N"),
        (("--gitlab", "acme/data"), "--gitlab needs --project-id N"),
        (("--github", "acme"), "--github must be OWNER/REPO, not 'acme'"),
        ((), "a trust needs one of --github, --gitlab and --issuer"),
        (("--gitlab", "acme/data", "--project-id", "1", "--workflow", "x.yml"), "--workflow needs --github"),
        (("--gitlab", "acme/data", "--project-id", "1", "--repository-id", "2"), "--repository-id needs --github"),
        (("--issuer", "https://ci.example.com", "--claim", "job_id=1", "--project-id", "2"), "--project-id needs --gitlab"),
        (("--issuer", "http://x.example.com", "--claim", "a_id=1"), "--issuer must be an address with https"),
        (("--issuer", "https://x.example.com", "--claim", "a"), "--claim 'a' is not NAME=VALUE"),
    ],
)
def test_an_incomplete_trust_is_refused(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    refused = run_crmctl("service", "trust", "add", "x", "--scope", "objects:read", *options, "--data", tmp_path / "d", "-o", "json").exits(
        2
    )
    assert expected in refused.error()["message"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--claim", "sub=x", "--scope", "objects:read"), "one claim must be an immutable id"),
        (("--claim", "a_id=1", "--scope", "objects:raed"), "unknown scope objects:raed"),
        (("--claim", "a_id=1", "--scope", "objects:read", "--ttl", "1m"), "from 5 minutes to 24 hours"),
    ],
)
def test_a_trust_without_limits_is_refused(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    data = ("--data", tmp_path / "d", "-o", "json")
    refused = run_crmctl("service", "trust", "add", "x", "--issuer", "https://x.example.com", *options, *data).exits(9)
    assert expected in refused.error()["message"]
    assert run_crmctl("service", "trust", "list", *data).ok().json() == []


def test_a_removed_trust_accepts_nothing(tmp_path: Path) -> None:
    with Issuer() as issuer, running_service(tmp_path / "service") as service:
        add_trust(service.data_dir, issuer)
        run_crmctl("service", "trust", "remove", "ci", "--data", service.data_dir).ok()
        assert Trusting(service, issuer).exchange(issuer.token(service.base_url)).status_code == 400


def test_a_trust_that_is_removed_during_an_exchange_gives_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = token_endpoint.check_token
    with Issuer() as issuer, running_service(tmp_path / "service") as service:
        add_trust(service.data_dir, issuer)

        def check_and_remove(*token: Any, now: float) -> Any:
            found = check(*token, now=now)
            service.engine.write(lambda tx: short_lived_keys.remove_trust(tx, "ci", now=now))
            return found

        monkeypatch.setattr(token_endpoint, "check_token", check_and_remove)
        trusting = Trusting(service, issuer)
        assert trusting.exchange(issuer.token(service.base_url)).json() == {"error": "invalid_grant"}
        assert [entry["about"]["rule"] for entry in trusting.audit("token.refused")] == ["ci: it was removed meanwhile"]
