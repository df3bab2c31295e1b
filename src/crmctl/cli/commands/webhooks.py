"""`crmctl webhooks`: event types, management portal, local receiver and signature checks."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, ServiceError, UsageError
from crmctl.models.ids import is_uuid, suggestion
from crmctl.output.streams import ClosedPipe, clean

if TYPE_CHECKING:
    from crmctl.client.webhook_receiver import ReceivedEvent
    from crmctl.models.jsontext import Json

app = CommandApp("See event types, open the management portal, receive and check deliveries.")

PORT = 8788
TOLERANCE = 300.0
SecretOption = Annotated[str | None, option("--secret", "SECRET", "Signing secret of the endpoint; better in CRMCTL_WEBHOOK_SECRET.")]
SECRET_VARIABLE = "CRMCTL_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable


@app.command("events", examples=["crmctl webhooks events", "crmctl webhooks events -q '[].name'"])
def list_events(runtime: Runtime) -> None:
    """List the event types that endpoints can subscribe to."""
    from crmctl.models.resources import EVENT_TYPES as KNOWN
    from crmctl.output.views import EVENT_TYPES

    listed = runtime.crm.webhooks().wire.get("eventTypes") or []
    if not isinstance(listed, list):
        raise ServiceError("the service sent event types that are not a list", code="unreadable_answer")
    items = [item if isinstance(item, dict) else {"name": str(item), "description": KNOWN.get(str(item))} for item in listed]
    runtime.emitter.emit_items(items, EVENT_TYPES)


@app.command("portal", examples=["crmctl webhooks portal", "crmctl webhooks portal -q portalUrl", "crmctl webhooks portal --open"])
def show_portal(
    runtime: Runtime,
    open_it: Annotated[bool, flag("--open", "Open it in the browser.")] = False,
) -> None:
    """Print the address of the management portal.

    It manages endpoints, event types, delivery history, replays and test events.
    """
    url = runtime.crm.webhooks().portal_url
    if not url:
        raise ServiceError("the service sent no portal address", code="unreadable_answer")
    runtime.emitter.emit_result({"portalUrl": url}, text=url)
    if open_it:
        runtime.browse(url)


@app.command("replay", writes=True, examples=["crmctl webhooks replay 01a20a8f-8ebc-771f-8c7e-82be6f08eca5 --dry-run"])
def replay_delivery(
    runtime: Runtime,
    delivery: Annotated[str, argument("DELIVERY", "Id of the delivery, as the portal shows it.")],
) -> None:
    """Deliver an event to its endpoint again.

    A delivery that still waits is tried now. Only crmctl's own service can replay by command; others have the portal.
    """
    from crmctl.cli.targets import taken_for_id
    from crmctl.client.answers import read_holder
    from crmctl.models.resources import Replay

    name = "POST /webhooks/deliveries/{deliveryId}/replay"
    with taken_for_id(delivery, f"there is no delivery {delivery!r}", "crmctl webhooks portal --open shows the deliveries with their ids"):
        answer = runtime.crm.extension(name, delivery)
    replay = read_holder(answer, Replay, "deliveryId", "isNew")
    runtime.done(replay.wire, f"{'new delivery' if replay.is_new else 'tried now:'} {replay.delivery_id}")


@app.command(
    "listen",
    examples=[
        "CRMCTL_WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw== crmctl webhooks listen",
        "crmctl webhooks listen --port 0",
    ],
)
def listen_for_events(
    runtime: Runtime,
    secret: SecretOption = None,
    port: Annotated[int, option("--port", "PORT", "Listen on this port; 0 takes a free one.", min=0, max=65535)] = PORT,
    host: Annotated[str, option("--host", "HOST", "Listen on this address.")] = "127.0.0.1",
    tolerance: Annotated[float, option("--tolerance", "SECONDS", "Largest accepted age of a signature.")] = TOLERANCE,
) -> None:
    """Receive deliveries, check signatures and print one JSON line per event.

    crmctl prints deliveries signed with webhook-* or svix-* headers once and answers 204 after writing the line. It answers 401 to other
    deliveries, and 503 if it cannot write, so that the service sends the event again. Ctrl-C or a closed pipe ends the command with exit 0.
    """
    if not 0 < tolerance < 1e9:
        raise UsageError("--tolerance must be a number of seconds above 0")
    listen(runtime, (host, port), signing_secret(runtime, secret), tolerance)


@app.command(
    "trigger",
    examples=[
        "crmctl webhooks trigger record.created --to http://localhost:3000/hooks",
        "crmctl webhooks trigger record.updated --to http://localhost:3000/hooks --secret-env HOOK_SECRET --data event.json",
    ],
)
def trigger_event(
    runtime: Runtime,
    event: Annotated[str, argument("EVENT", "Type of the event, such as record.created.")],
    to: Annotated[str, option("--to", "URL", "Address that receives the delivery.")],
    secret_env: Annotated[str, option("--secret-env", "NAME", "Environment variable with the signing secret.")] = SECRET_VARIABLE,
    record: Annotated[str | None, option("--record", "ID", "Send this record instead of a sample.")] = None,
    data: Annotated[str | None, option("--data", "FILE|-", "Send this JSON object instead of a sample.")] = None,
) -> None:
    """Send one signed delivery of an event to an address, to test its receiver.

    The service does not learn of it. Only --record sends requests to the service. Exit 7 if the receiver answers with an error.
    """
    from uuid import uuid4

    from crmctl.cli.targets import read_json_bytes
    from crmctl.client.transport import Request, send_once
    from crmctl.models import jsontext
    from crmctl.models.resources import EVENT_TYPES as KNOWN
    from crmctl.models.signatures import sign

    if event not in KNOWN:
        raise UsageError(f"there is no event {event!r}", hint=suggestion(event, KNOWN, f"events: {', '.join(KNOWN)}"))
    if record is not None and (data is not None or not event.startswith("record.")):
        raise UsageError("--record is for record events without --data")
    secret = signing_secret(runtime, None, secret_env)
    payload = _sample(event) if record is None else _record_payload(runtime, record)
    body = jsontext.dumps(payload).encode() if data is None else read_json_bytes(runtime, data, is_object=True)
    event_id = str(uuid4())
    signed = sign([secret], event_id, int(runtime.clock.now()), body).as_headers()
    headers = {"Content-Type": "application/json", **signed, "webhook-event-type": event, "webhook-attempt": "1"}
    status = send_once(Request("POST", to, tuple(headers.items()), body), ca_bundle=runtime.settings.ca_bundle.value).status
    if not 200 <= status < 300:
        raise ServiceError(f"{to} answered with status {status}", code="refused_delivery", details={"id": event_id, "status": status})
    runtime.emitter.emit_result({"id": event_id, "event": event, "status": status}, text=f"{event} {event_id}: status {status}")


NOBODY = "00000000-0000-4000-8000-000000000000"


def _sample(event: str) -> Json:
    noun, _, outcome = event.partition(".")
    record, run = {"recordId": NOBODY, "objectId": NOBODY}, {"workflowId": NOBODY, "workflowName": "Greet", "runId": NOBODY}
    samples: dict[str, Json] = {
        "record": record | {"data": {"name": "Ada Lovelace"}},
        "activity": {"activityId": NOBODY, "title": "Call Ada", "linkedRecords": [record]},
        "workflow": {**run, "triggerEvent": "record/created", "status": outcome, "error": "a call failed" if outcome == "failed" else None},
    }
    return {"organizationId": NOBODY} | samples[noun]


def _record_payload(runtime: Runtime, record_id: str) -> Json:
    """Return the payload of a record, which may belong to any object. Raises NotFoundError."""
    if not is_uuid(record_id):
        raise UsageError(f"--record {record_id!r} is no id", hint="crmctl records list OBJECT -o ids")
    for crm_object in runtime.crm.list_objects():
        with suppress(NotFoundError):
            wire = runtime.crm.get_record(crm_object.id, record_id).wire
            return {"organizationId": NOBODY, "recordId": wire["id"], "objectId": crm_object.id, "data": wire.get("data", {})}
    raise NotFoundError(f"there is no record with the id {record_id}")


@app.command(
    "verify",
    examples=[
        "crmctl webhooks verify body.json --headers headers.txt --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw==",
        "crmctl webhooks verify - --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw== --id msg_p5jXN8AQM9LWM0D4loKWxJek"
        " --timestamp 1614265330 --signature v1,/Xy7FLfFISa1TZH7WLT+0x/orG5MlcutAFOpVan3/00= < body.json",
    ],
)
def verify_delivery(
    runtime: Runtime,
    body_file: Annotated[str, argument("BODYFILE|-", "The exact body, in a file or from stdin.")],
    secret: SecretOption = None,
    message_id: Annotated[str | None, option("--id", "ID", "Value of the header webhook-id.")] = None,
    timestamp: Annotated[str | None, option("--timestamp", "T", "Value of the header webhook-timestamp.")] = None,
    signature: Annotated[str | None, option("--signature", "SIG", "Value of the header webhook-signature.")] = None,
    headers: Annotated[str | None, option("--headers", "FILE", "Saved headers: lines of 'Name: value'.")] = None,
    tolerance: Annotated[float | None, option("--tolerance", "SECONDS", "Refuse older signatures; by default any age is valid.")] = None,
) -> None:
    """Check the signature of a saved delivery.

    Exit 0 if it is valid, 9 with the reason if not. The age matters only with --tolerance.
    """
    from crmctl.cli.targets import read_input
    from crmctl.models.signatures import SignatureError, read_headers, verify

    key = signing_secret(runtime, secret)
    saved = parse_saved_headers(read_input(runtime, headers).decode("utf-8", "replace")) if headers is not None else {}
    values = {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
    saved |= {name: value for name, value in values.items() if value is not None}
    body = read_input(runtime, body_file)
    try:
        signed = read_headers(saved)
        now = runtime.clock.now()
        verify(key, signed, body, now if tolerance is not None else _moment(signed.timestamp), tolerance if tolerance is not None else 1.0)
    except SignatureError as error:
        raise RejectedError(f"not valid: {error}", code="invalid_signature", hint=_hint(str(error))) from error
    document: Json = {
        "valid": True,
        "id": signed.id,
        "timestamp": signed.timestamp,
        "ageSeconds": round(now - int(signed.timestamp)),
    }
    runtime.emitter.emit_result(document, text=f"valid: {signed.id}")


def _moment(timestamp: str) -> float:
    return float(timestamp) if timestamp.isascii() and timestamp.isdecimal() else 0.0


def _hint(reason: str) -> str | None:
    if "missing header" in reason:
        return "--headers FILE, or --id, --timestamp and --signature"
    return "the body must be the bytes that came, not reformatted JSON" if "fits" in reason else None


TICK = 0.5
LAST_ANSWERS = 5.0
"""Seconds to answer deliveries received before the end."""


def signing_secret(runtime: Runtime, option: str | None, variable: str = SECRET_VARIABLE) -> str:
    """Return the secret from --secret or the environment. Raises UsageError for a missing or malformed one."""
    from crmctl.models.signatures import SignatureError, key_of

    secret = (option or runtime.environ.get(variable) or "").strip()
    if not secret:
        how = f"set {variable}" + (" or pass --secret" if variable == SECRET_VARIABLE else "")
        raise UsageError("the signing secret is missing", hint=f"{how}; the portal shows it")
    try:
        key_of(secret)
    except SignatureError as error:
        raise UsageError(f"{error}", hint="a secret looks like whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw==", code="bad_secret") from error
    return secret


def listen(runtime: Runtime, address: tuple[str, int], secret: str, tolerance: float) -> None:
    """Receive until Ctrl-C, SIGTERM or a closed pipe, then shut down cleanly. Raises UsageError if a line cannot be written.

    The receiver confirms an event only after its line is written; the service sends unconfirmed events again.
    """
    from crmctl.bulk_context import watch_interrupts
    from crmctl.client.webhook_receiver import Receiver
    from crmctl.models import jsontext

    ended = threading.Event()
    problems: list[BaseException] = []

    def take(event: ReceivedEvent) -> bool:
        try:
            if not problems:
                runtime.streams.write_out(jsontext.dumps(event.to_document()) + "\n")
        except (ClosedPipe, CrmctlError) as problem:
            problems.append(problem)
            ended.set()
        return not problems

    def say(text: str) -> None:  # at once in every format: scripts wait for the address
        runtime.streams.write_err(f"{clean(text)}\n")

    receiver = Receiver(address, secret, runtime.clock, tolerance=tolerance, take=take, refuse=say)
    receiver.start()
    with watch_interrupts(lambda _: None) as interrupt:
        say(f"listening on {receiver.url}; Ctrl-C ends it")
        while not (interrupt.requested or ended.wait(TICK) or runtime.streams.reader_is_gone):
            pass
        receiver.close()
        receiver.await_answers(LAST_ANSWERS)
    if problems:
        raise problems[0]  # a closed pipe ends the program with 0


def parse_saved_headers(text: str) -> dict[str, str]:
    """Return headers from lines of `Name: value`."""
    pairs = [line.partition(":") for line in text.splitlines() if ":" in line and not line.startswith(("POST ", "HTTP/"))]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
