"""The whole console without scripts: every form works as the page shows it, and two users never overwrite each other."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.routing import compile_path

from tests.service.console.conftest import Newcomer, link_to
from tests.support.consolepages import furnish, page_tables
from tests.support.plainpages import PlainReader
from tests.support.service import RunningService

pytestmark = pytest.mark.usefixtures("_cheap_passwords")
PASSWORD = "correct horse battery"

NewReader = Callable[[], PlainReader]


@pytest.fixture
def new_reader(service: RunningService, newcomer: Newcomer) -> NewReader:
    """Return a function that creates readers who have not signed in."""
    return lambda: newcomer(service).reader()


def link_of(reader: PlainReader) -> str:
    return html.unescape(re.findall(r"http[^\s<\"]+/console/password\?code=[\w-]+", reader.text)[0])


def sign_in_and_out(operator: PlainReader, member: PlainReader) -> None:
    operator.open("/console").follow("Members").follow("Invite")
    operator.press("Invite", {"Name": "Ada", "Email": "ada@example.com", "Owner": True})
    member.open(link_of(operator)).press("Set the password", {"Password": PASSWORD, "Repeat password": PASSWORD})
    assert "Overview" in member.text
    member.press("Sign out")
    member.open("/console/records/people").press("Sign in", {"Email": "ada@example.com", "Password": PASSWORD})
    assert "/records/people" in str(member.answer.url), "signing in continues to the requested page"
    member.follow("Ada")
    typed = {"Current password": PASSWORD, "New password": f"{PASSWORD} 2", "Repeat password": f"{PASSWORD} 2"}
    assert "The password is changed" in member.press("Change the password", typed).text


def administer(reader: PlainReader) -> None:
    reader.follow("Members").follow("Invite").press("Invite", {"Name": "Grace", "Email": "grace@example.com", "Viewer": True})
    reader.open("/console/members").follow("Grace").press("Save", {"Member": True})
    assert "/console/password?code=" in reader.follow("Grace").press("Create a password link").text
    reader.open("/console/members").follow("Grace").follow("Remove access").press("Remove access")
    assert "cannot sign in any more" in reader.text
    reader.follow("API keys").follow("Create a key").press("Create the key", {"Name": "ci", "Only these": True, "records:read": True})
    assert re.search(r"crs_[\w-]{43}", reader.text)
    assert re.search(r"crs_[\w-]{43}", reader.open("/console/keys").follow("Rotate").press("Create the new key").text)
    assert "Saved" in reader.follow("Settings").press("Save", {"Time zone": "Europe/Berlin", "Default currency": "EUR"}).text
    assert reader.follow("Health").press("Back up now").follow("Download").answer.content
    reader.open("/console")
    assert "The key is revoked" in reader.open("/console/keys").follow("Revoke ci").press("Revoke the key").text


def change_the_schema(reader: PlainReader) -> None:
    reader.follow("Objects").follow("New object").press("Create the object", {"Plural name": "Projects", "Singular name": "Project"})
    reader.follow("New attribute").press("Create the attribute", {"Name": "State", "Type": "List of options", "Options": "open\nclosed"})
    reader.follow("State").press("Save", {"Name": "Phase", "Option open": "opened", "Place of closed": "0", "New options": "lost"})
    assert re.findall(r'name="option" value="(\w+)"', reader.follow("Phase").text) == ["closed", "opened", "lost"]
    reader.open(str(reader.answer.url).rpartition("/attributes")[0])
    assert "inactive" in reader.follow("Phase").press("Deactivate").text
    assert "The attribute is deleted" in reader.follow("Phase").follow("Delete").press("Delete the attribute").text
    assert "Saved" in reader.follow("Edit").press("Save", {"Plural name": "Works"}).text
    assert "The object is inactive" in reader.press("Deactivate").text
    assert "The object is deleted" in reader.follow("Delete").press("Delete the object").text


def work_with_records(reader: PlainReader) -> None:
    for name in ("Acorn", "Acme"):
        reader.follow("Companies").follow("New Company").press("Create", {"Name": name})
    reader.follow("People").follow("New Person").press("Create", {"Company": "acme", "Job title": "Analyst"})
    assert "Acme" in reader.text
    reader.follow("Edit").press("Save", {"Job title": "Engineer"})
    assert "Analyst" in reader.text, "the history shows the old value"
    reader.press("Add", {"Title": "Call", "Summary": "Wants a quote"})
    assert "Engineer" in reader.follow("People").press("Filter", {"Attribute": "Job title", "Value": "engin"}).text
    reader.follow("Activities").follow("Call").press("Save", {"Title": "Meeting"})
    assert "The activity is deleted" in reader.follow("Delete").press("Delete the activity").text
    reader.open("/console/activities/new").press("Add", {"Title": "Visit", "Object": "Companies", "Record": "acorn"})
    reader.follow("Acorn").follow("Delete").press("Delete the record").press("Undo")
    reader.follow("Companies").press("Change", {"Select Acorn": True, "Attribute to change": "Industry"})
    reader.press("Preview", {"Industry": "Technology"}).press("Change 1 record")
    assert "The records are changed." in reader.text
    reader.follow("Companies").follow("Name").press("Save the view", {"Name of the view": "By name", "Everyone sees it": True})
    reader.follow("Acme").follow("Delete").press("Delete the record").follow("Done").follow("Deleted").press("Restore Acme")
    assert "The record is restored" in reader.text
    reader.follow("Companies")
    assert "The view is deleted" in reader.follow("All companies").follow("By name").press("Delete this view").text
    reader.follow("Companies").follow("Import").press("Upload", upload=("companies.csv", b"Name\nImported\n")).press("Import")
    assert "1 record created" in reader.text
    reader.follow("Files").press("Upload", {"Bucket": "notes"}, upload=("note.txt", b"remember"))
    assert reader.follow("note.txt").answer.content == b"remember"


def change_actions(reader: PlainReader) -> None:
    reader.follow("Edit").press("Add the action", {"New action": "Change the record"}).press("Save", {"Company": "nobody at all"})
    assert "Action 2: Company: no record has this name" in html.unescape(reader.text)
    reader.press("Move up", {"Company": "acme", "Name: First": "{{ data.first }}"})
    assert 'Move up<span class="hidden"> action 2' in reader.text
    reader.press("Save", {"Score": "many"})
    assert "Action 1: Score: " in html.unescape(reader.text)
    reader.press("Save", {"Score": "12.50"})
    page = re.sub(r"<[^>]+>", " ", html.unescape(reader.text))
    assert re.search(r"1\. Change the record\s+of People\s+Record\s+the triggering record\s+Name\s+{{ data.first }}", page)
    assert re.search(r"Company\s+Acme\s+Score\s+12.5\s+2\. Add an activity\s+Title of the activity\s+Call", page)
    reader.follow("Edit").press("Save", {"Name: First": ""})
    assert "data.first" not in reader.text
    reader.follow("Edit").press("Show fields").press("Remove the action").press("Save")
    assert "Change the record" not in reader.text
    assert "Add an activity" in reader.text


def automate(reader: PlainReader) -> None:
    reader.open("/console/reports").follow("New report").press("Choose", {"Records of": "Companies"})
    reader.press("Save", {"Name": "By industry", "Figures": True, "Group by": "Industry", "Figure 1": "Number of records"})
    reader.follow("Edit").press("Save", {"Description": "Companies by industry"})
    assert "completed" in reader.press("Run").text
    assert reader.follow("CSV").text.startswith("\ufeffindustry")
    reader.open("/console/reports").follow("By industry").follow("Delete").press("Delete the report")
    assert "The report is deleted" in reader.text
    reader.follow("Workflows").follow("New workflow")
    reader.press("Add the action", {"Name": "Call them", "New action": "Add an activity", "Object": "People"})
    reader.press("Save", {"Title of the activity": "Call"})
    change_actions(reader)
    reader.press("Enable").press("Run", {"Data": "{}"})
    reader.open("/console/workflows").follow("Call them").follow("Edit").press("Save", {"Description": "Of late"})
    assert "The workflow is deleted" in reader.follow("Delete").press("Delete the workflow").text


def deliver(reader: PlainReader) -> None:
    reader.follow("Webhooks").follow("Add an endpoint")
    reader.press("Add the endpoint", {"Address": "http://127.0.0.1:9/", "All event types": True})
    reader.follow("Edit").press("Save", {"Description": "Orders"})
    assert re.search(r"whsec_\S+", reader.press("Show the secret").text)
    reader.follow("Rotate").press("Rotate the secret")
    assert "webhook.test" in reader.press("Send a test").text
    assert "is tried now" in reader.press("Try now").text
    reader.open("/console/webhooks").follow("http://127.0.0.1:9/").follow("Replay several").press("Count them first")
    assert "in this range" in reader.text
    reader.press("Replay").press("Disable").follow("Delete").press("Delete the endpoint")
    assert "The endpoint is deleted" in reader.text


def test_every_form_of_the_console_works_without_scripts(service: RunningService, new_reader: NewReader) -> None:
    operator, member = new_reader().open(link_to(service)), new_reader()
    sign_in_and_out(operator, member)
    for part in (administer, change_the_schema, work_with_records, automate, deliver):
        part(member.open("/console"))
    assert "curl" in member.open("/console/api").follow("Records").text
    login = service.client.post("/oauth/device_authorization", data={"client_id": "x"}).json()
    approved = member.open("/console/device").press("Continue", {"Code": login["user_code"]}).press("Approve")
    assert "The login is approved" in approved.text
    member.open("/console/account").press("End")
    assert "Sign in" in member.open("/console").text
    sent = {path.removeprefix("/console") for reader in (operator, member) for method, path in reader.sent if method == "post"}
    routes = [route.path for route in page_tables(service)[0].routes if route.method == "POST"]
    assert [path for path in routes if not any(compile_path(path)[0].match(address) for address in sent)] == []


EDITS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/activities/{id:uuid}", {"Title": "Theirs"}, {"Summary": "Mine"}),
    ("/objects/{objectId:uuid}/attributes/{id:uuid}", {"Name": "Theirs"}, {"Name": "Mine"}),
    ("/members/{id:uuid}", {"Name": "Theirs"}, {"Member": True}),
    ("/webhooks/{id:uuid}/edit", {"Description": "Theirs"}, {"All event types": True}),
    ("/reports/{id:uuid}/edit", {"Description": "Theirs"}, {"At most": "7"}),
    ("/workflows/{id:uuid}/edit", {"Description": "Theirs"}, {"Name": "Mine"}),
    ("/settings", {"Name": "Theirs"}, {"Default currency": "EUR"}),
]
"""A page, the first user's change, the second user's change."""


def test_the_second_user_of_the_same_form_sees_the_conflict(service: RunningService, new_reader: NewReader) -> None:
    furnished = furnish(service)
    object_id = service.client.get("/api/v1/objects").json()["objects"][-1]["id"]
    first, second = new_reader().open(link_to(service)), new_reader().open(link_to(service))
    places = [(furnished.paths[page][0], theirs, mine) for page, theirs, mine in EDITS]
    places.append((f"/objects/{object_id}/edit", {"Description": "Theirs"}, {"Plural name": "Mine"}))
    for path, theirs, mine in places:
        first.open(f"/console{path}")
        second.open(f"/console{path}")
        assert first.press("Save", theirs).answer.status_code == 200, path
        assert second.press("Save", mine).answer.status_code == 409, path
        is_logged = not path.startswith("/activities")
        saver = r"Operator saved this on \d+ [A-Z][a-z]{2} \d{4}, \d\d:\d\d;" if is_logged else "Someone else saved this;"
        assert re.search(saver, second.text), path
        assert re.search(r"Saved values</h2><pre[^>]*>[^<]*Theirs", second.text), path
        assert "Theirs" in first.open(f"/console{path}").text, f"{path}: nothing is overwritten"
        # After seeing the conflict, the second user may save; the form kept the entries.
        assert second.press("Save").answer.status_code == 200, path
        kept = [value for value in mine.values() if isinstance(value, str)]
        assert all(value in first.open(f"/console{path}").text for value in kept), path
