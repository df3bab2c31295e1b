"""The reference of the interface, and the page that writes the commands of an import."""

from __future__ import annotations

import html
import re
import shlex

from crmctl.cli.app import describe_tree, walk_commands
from crmctl.service.console.api_reference import COMMANDS, calls_of
from tests.service.console.conftest import Visitor
from tests.service.console.test_pages import NASTY
from tests.support.service import RunningService


def test_every_call_of_the_interface_is_there_with_a_command_that_exists(service: RunningService, visitor: Visitor) -> None:
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
    assert [call.id for call in calls if call.id not in COMMANDS and not call.command.startswith("crmctl api ")] == []


def test_the_commands_of_an_import_fit_the_files_columns(service: RunningService, visitor: Visitor) -> None:
    path = "/console/records/people/import"
    content = f"Email;job title;{NASTY};Odd\nada@example.com;Engineer;x;y\n".encode()
    files = {"file": ("it's people.csv", content, "text/csv")}
    page = visitor.client.post(path, data={"token": visitor.form_token()}, files=files)
    assert "<script>alert" not in page.text
    commands = [shlex.split(html.unescape(text)) for text in re.findall(r'<code id="command-[^>]*>([^<]*)', page.text)]
    assert commands[0][:5] == ["crmctl", "bulk", "import", "people", "it's people.csv"]
    assert {"Email=email", "job title=job_title", "Odd="} <= set(commands[0])
    assert commands[0][-1] == "--dry-run"
    # Parts of names and addresses are known by their usual spellings; what was chosen keeps the file.
    head = 'E-Mail,First Name,"Name, of the family",ZIP code,Surname,Company\na@example.com,Ada,x,10117,Lovelace,Northwind\n'
    read = visitor.client.post(path, data={"token": visitor.form_token()}, files={"file": ("new ones.csv", head.encode())}).text
    sent = dict(re.findall(r'<input type="hidden" name="(head|name)" value="([^"]*)"', read))
    again = visitor.send(path, **{name: html.unescape(text) for name, text in sent.items()}, **{"map:Name, of the family": "notes"}).text
    [first, *_] = re.findall(r'<code id="command-[^>]*>([^<]*)', again)
    command = shlex.split(html.unescape(first))
    assert command[4] == "new ones.csv"
    wanted = {"E-Mail=email", "First Name=name.first", "Name, of the family=notes", "ZIP code=address.postalCode", "Surname=name.last"}
    assert wanted <= set(command)
    assert "company=companies.name" in command
    assert visitor.client.post(path, data={"token": visitor.form_token()}, files={"file": ("x.csv", b"\n\n")}).status_code == 400
    assert service.client.get(f"/api/v1/objects/{service.object_id('people')}/records").json()["pagination"]["total"] == 0
