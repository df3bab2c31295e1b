"""The console's reference of the interface."""

from __future__ import annotations

from crmctl.cli.app import describe_tree, walk_commands
from crmctl.service.console.api_reference import COMMANDS, calls_of
from tests.service.console.conftest import Visitor
from tests.support.service import RunningService


def test_the_reference_has_every_call_with_an_existing_command(service: RunningService, visitor: Visitor) -> None:
    document = service.client.get("/openapi.json").json()
    calls = [call for group in calls_of(document, "http://x").values() for call in group]
    assert len(calls) == sum(len(methods) for methods in document["paths"].values())
    known = {leaf["command"] for leaf in walk_commands(describe_tree())}
    assert [command for command in COMMANDS.values() if " ".join(command.split()[:3]) not in known] == []
    overview = visitor.get("/console/api").text
    for tag in {operation["tags"][0] for methods in document["paths"].values() for operation in methods.values()}:
        assert f'href="/console/api/{tag}"' in overview
        page = visitor.get(f"/console/api/{tag}")
        assert page.status_code == 200
        assert len(page.content) < 40_000
        assert "curl http" in page.text
    assert visitor.get("/console/api/nothing").status_code == 404
    assert [call["id"] for call in calls if call["id"] not in COMMANDS and not call["command"].startswith("crmctl api ")] == []
