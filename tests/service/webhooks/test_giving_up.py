"""The service disables an endpoint after five days without a success and reports it; a success or the user resets the time."""

from __future__ import annotations

from typing import Any

from crmctl.models.jsontext import loads
from crmctl.service.store import logs, webhooks
from tests.support.deliveries import Bench
from tests.support.receiver import Receiver

DAY = 24 * 3600


def fail(bench: Bench, endpoint: dict[str, Any]) -> str:
    """Make an attempt that fails. Return the endpoint's health afterwards."""
    bench.event()
    bench.deliver()
    return str(bench.engine.read(lambda tx: webhooks.get_endpoint(tx, endpoint["id"]))["health"])


def test_five_days_of_failures_disable_an_endpoint_and_send_an_event(bench: Bench) -> None:
    with Receiver() as other:
        listener = bench.endpoint(other.url, None)
        broken = bench.endpoint("http://127.0.0.1:9/", ["record.created"])
        assert fail(bench, broken) == "failing"
        bench.clock.advance(5 * DAY - 60)
        assert fail(bench, broken) == "failing"
        bench.clock.advance(120)
        assert fail(bench, broken) == "disabled"
        bench.dispatch()
        bench.deliver()
        notices = [request for request in other.received if request.headers["webhook-event-type"] == "webhook.disabled"]
    [about] = [loads(request.body) for request in notices]
    assert (about["endpointId"], about["url"]) == (broken["id"], "http://127.0.0.1:9/")
    [noted] = bench.engine.read(lambda tx: logs.list_entries(tx, action="endpoint.disabled"))
    assert (noted["by"], noted["id"]) == ({"type": "service"}, broken["id"])
    assert bench.engine.read(lambda tx: webhooks.get_endpoint(tx, listener["id"]))["enabled"]
    found = bench.engine.read(lambda tx: webhooks.get_endpoint(tx, broken["id"]))
    assert (found["enabled"], found["disabledAt"] is None) == (False, False)
    enabled = bench.engine.write(lambda tx: webhooks.update_endpoint(tx, broken["id"], {"enabled": True}, now=bench.clock.now()))
    assert (enabled["health"], enabled["disabledAt"]) == ("working", None)
    bench.clock.advance(DAY)
    assert fail(bench, broken) == "failing"
