"""`crmctl webhooks verify`: saved deliveries, headers in any form, and the place of the event type."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from crmctl.cli.commands.webhooks import parse_saved_headers
from crmctl.client.webhook_receiver import event_type
from crmctl.models.signatures import new_secret
from tests.support.cli import run_crmctl
from tests.support.listener import SECRET, signed


def saved(tmp_path: Path, at: float) -> tuple[Path, dict[str, str]]:
    body = tmp_path / "body.json"
    body.write_bytes(b'{"a":  1}\n')
    return body, signed("evt_1", body.read_bytes(), at=at)


@pytest.mark.parametrize("age", [0, 100_000_000])
def test_verify_a_saved_delivery(tmp_path: Path, age: float) -> None:
    body, headers = saved(tmp_path, time.time() - age)
    given = ["--id", "evt_1", "--timestamp", headers["webhook-timestamp"], "--signature", headers["webhook-signature"]]
    valid = run_crmctl("webhooks", "verify", body, "--secret", SECRET, *given).ok().json()
    assert (valid["valid"], valid["id"]) == (True, "evt_1")
    run_crmctl("webhooks", "verify", "-", *given, input=body.read_bytes(), env={"CRMCTL_WEBHOOK_SECRET": SECRET}).ok()
    for name, family in (("lines", "webhook"), ("svix", "svix")):
        lines = [f"{header.title().replace('Webhook', family.title())}: {value}" for header, value in headers.items()]
        (tmp_path / name).write_text("\n".join(["POST /hook HTTP/1.1", *lines]))
        run_crmctl("webhooks", "verify", body, "--secret", SECRET, "--headers", tmp_path / name).ok()
    forged = run_crmctl("webhooks", "verify", body, "--secret", new_secret(), *given).exits(9)
    assert forged.error()["code"] == "invalid_signature"
    changed = run_crmctl("webhooks", "verify", "-", "--secret", SECRET, *given, input=b'{"a": 1}').exits(9)
    assert "no signature fits" in changed.error()["message"]
    assert SECRET not in changed.err


def test_verify_names_missing_old_and_wrong_values(tmp_path: Path) -> None:
    body, headers = saved(tmp_path, time.time() - 1000)
    (tmp_path / "h").write_text("".join(f"{name}: {value}\n" for name, value in headers.items()))
    with_age = run_crmctl("webhooks", "verify", body, "--secret", SECRET, "--headers", tmp_path / "h", "--tolerance", "300").exits(9)
    assert "seconds old" in with_age.error()["message"]
    missing = run_crmctl("webhooks", "verify", body, "--secret", SECRET, "--id", "x").exits(9)
    assert "webhook-timestamp" in missing.error()["message"]
    odd = ["--id", "x", "--timestamp", "yesterday", "--signature", "v1,x"]
    assert "timestamp" in run_crmctl("webhooks", "verify", body, "--secret", SECRET, *odd).exits(9).error()["message"]
    run_crmctl("webhooks", "verify", tmp_path / "none", "--secret", SECRET, *odd).exits(2)
    run_crmctl("webhooks", "verify", body, *odd, env={"CRMCTL_WEBHOOK_SECRET": None}).exits(2)


def test_saved_headers_are_lines_after_the_first_of_a_message() -> None:
    assert parse_saved_headers("HTTP/1.1 200\r\nWebhook-Id: a:b\r\nX: y\r\n") == {"webhook-id": "a:b", "x": "y"}


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ((("Webhook-Event-Type", "record.created"),), b'{"type": "other"}', "record.created"),
        ((), b'{"type": "record.created", "data": {}}', "record.created"),
        ((), b'{"eventType": "record.updated"}', "record.updated"),
        ((), b'{"event": "record.deleted"}', "record.deleted"),
        ((), b'{"type": 3}', None),
        ((), b"[1]", None),
        ((("webhook-event-type", " "),), b"junk", None),
    ],
)
def test_where_the_type_of_an_event_is_found(headers: tuple[tuple[str, str], ...], body: bytes, expected: str | None) -> None:
    assert event_type(headers, body) == expected
