"""`crmctl webhooks trigger` sends one signed delivery that a receiver accepts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from crmctl.double_client import TestService
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.patience import PATIENCE

SECRET = {"CRMCTL_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw=="}


@pytest.mark.parametrize(
    ("event", "field"), [("record.created", "recordId"), ("activity.deleted", "activityId"), ("workflow.failed", "workflowId")]
)
def test_a_receiver_accepts_the_sample(event: str, field: str) -> None:
    with start_crmctl("webhooks", "listen", "--port", "0", env=SECRET) as listening:
        url = listening.stderr.readline().split("listening on ")[1].split(";")[0]
        sent = run_crmctl("webhooks", "trigger", event, "--to", url, env=SECRET).ok().json()
        received = json.loads(listening.stdout.readline())
        listening.send_signal(signal.SIGTERM)
        listening.communicate(timeout=PATIENCE)
    assert (sent["status"], sent["id"], sent["event"]) == (204, received["id"], event)
    assert received["type"] == event
    assert field in received["data"]


def test_a_record_or_a_file_is_sent_and_a_refusal_exits_with_7(crm: TestService) -> None:
    environ = {**SECRET, "CRMCTL_BASE_URL": crm.url, "CRMCTL_API_KEY": crm.key}
    ada = crm.client.records("companies").create({"name": "Acme"})
    to = ("--to", f"{crm.url}/api/v1/hooks")
    refused = run_crmctl("webhooks", "trigger", "record.updated", *to, "--record", ada.id, "-o", "json", env=environ).exits(7)
    assert refused.error()["message"].endswith("answered with status 401")
    Path("event.json").write_text('{"a": 1.50}')
    run_crmctl("webhooks", "trigger", "record.updated", *to, "--data", "event.json", env=environ).exits(7)
    record, event = [request["body"] for request in crm.requests if request["path"] == "/api/v1/hooks"]
    assert (record["recordId"], record["data"]["name"], event) == (ada.id, "Acme", {"a": 1.5})
    absent = run_crmctl("webhooks", "trigger", "record.updated", *to, "--record", "0" * 8 + ada.id[8:], "-o", "json", env=environ).exits(3)
    assert absent.error()["message"].startswith("there is no record with the id")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("record.creatd", "--to", "http://x"), "there is no event 'record.creatd'"),
        (("record.created", "--to", "x"), "x is not an address that can be called"),
        (("activity.created", "--to", "http://x", "--record", "1"), "--record is for record events without --data"),
        (("record.created", "--to", "http://x", "--record", "1"), "--record '1' is no id"),
        (("record.created", "--to", "http://x", "--data", "absent"), "cannot read absent"),
        (("record.created", "--to", "http://x", "--data", "list"), "list holds no JSON object"),
        (("record.created", "--to", "http://x", "--data", "text"), "text is not JSON"),
        (("record.created", "--to", "http://x", "--secret-env", "NONE"), "the signing secret is missing"),
    ],
)
def test_bad_input_sends_nothing(words: tuple[str, ...], expected: str) -> None:
    Path("list").write_text("[]")
    Path("text").write_text("{")
    refused = run_crmctl("webhooks", "trigger", *words, "-o", "json", env=SECRET).exits(2)
    assert expected in refused.error()["message"]
