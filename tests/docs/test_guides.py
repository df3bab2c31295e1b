"""Every command of the guides works as printed, in order, on a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from crmctl.models.jsontext import loads
from tests.support.cli import CRMCTL, run_crmctl
from tests.support.pages import follow, open_shell, read_page, type_line
from tests.support.service import RunningService, running_service, service_process
from tests.support.sources import ROOT
from tests.support.tasks import PAGE
from tests.support.warm_program import warm_program

pytestmark = pytest.mark.needs("bash", "python3")

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the folder of a `crmctl` that starts quickly; only the README's tour starts the installed one each time."""
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    return tmp_path / "bin"


@pytest.fixture
def shell(service: RunningService, program: Path) -> Iterator[pexpect.spawn]:
    """Open a shell in the test's folder; crmctl knows the service and its key."""
    with open_shell(Path.cwd(), {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}, program) as opened:
        yield opened


def test_first_import(shell: pexpect.spawn, service: RunningService) -> None:
    follow(shell, read_page("docs/guides/first-import.md"))
    people = {each["data"]["name"].split()[1]: each["data"] for each in records_of(service, "people")}
    assert set(people) == {"Hopper", "Turing", "Lovelace", "Johnson"}
    assert (people["Johnson"]["birthday"], people["Lovelace"]["status"]) == ("1918-08-26", "customer")


@pytest.mark.campaign
def test_every_day(shell: pexpect.spawn, service: RunningService) -> None:
    follow(shell, read_page("docs/guides/everyday.md"))
    [ada] = [each["data"] for each in records_of(service, "people") if each["data"]["email"] == "ada@acme.com"]
    assert ada["address"] == {"city": "Turin"}


def test_nightly_import(tmp_path: Path, program: Path) -> None:
    """The next run completes the rows that the first one left."""
    data, rows = tmp_path / "service", 700
    with open_shell(Path.cwd(), crmctl=program) as shell:
        with service_process(data, "--rate-limit", "0") as service:
            type_line(shell, f"export CRMCTL_BASE_URL={service.base_url} CRMCTL_API_KEY={service.key}")
            follow(shell, read_page("docs/guides/nightly-import.md"))
        port = service.base_url.rpartition(":")[2]
        people = [f"p{number}@example.org,{number}\n" for number in range(rows)]
        Path("people.csv").write_text("".join(["email,score\n", *people]), encoding="utf-8")
        with service_process(data, "--port", port, "--rate-limit", "5", "--rate-window", "600"):
            code, said = type_line(shell, "crmctl bulk import people people.csv --key email --max-wait 1")
            assert code == 5, said
        with service_process(data, "--port", port, "--rate-limit", "0"):
            key = f"crmctl service keys create --data {data} --name other --full-access -q key -o ids"
            type_line(shell, f"export CRMCTL_API_KEY=$({key})")
            code, said = type_line(shell, "sh nightly.sh")
            assert code == 0, said
    [resumed] = Path.cwd().glob("resumed-*.json")
    assert loads(resumed.read_text())["created"] == rows
    assert loads(Path("summary.json").read_text())["unchanged"] == rows


def test_a_feed_beside_people(shell: pexpect.spawn, service: RunningService) -> None:
    follow(shell, read_page("docs/guides/feed-beside-people.md"))
    people = {each["data"]["email"].split("@")[0]: each["data"] for each in records_of(service, "people")}
    assert set(people) == {"ada", "grace"}
    assert (people["ada"]["phone"], people["grace"]["status"]) == ("+442079461111", "customer")


def test_moving(tmp_path: Path, service: RunningService, program: Path) -> None:
    with running_service(tmp_path / "new") as new, open_shell(Path.cwd(), crmctl=program) as shell:
        for name, side in (("old", service), ("new", new)):
            login = ("auth", "login", "--profile", name, "--base-url", side.base_url, "--with-key", "--insecure-storage")
            run_crmctl(*login, input=side.key).ok()
        run_crmctl("attributes", "create", "people", "--name", "Shoe size", "--type", "number", "--profile", "old").ok()
        companies = [create(service, "companies", name=name) for name in ("Acme", "Initech")]
        works_at = {"ada@acme.com": 0, "alan@acme.com": 1, "grace@acme.com": 0}
        for email, number in works_at.items():
            create(service, "people", email=email, company=companies[number], shoe_size=38 + number)
        follow(shell, read_page("docs/guides/move-to-another-service.md"))
        names = {company["id"]: company["data"]["name"] for company in records_of(new, "companies")}
        people = [person["data"] for person in records_of(new, "people")]
        assert {person["email"]: names[person["company"]] for person in people} == {
            email: ("Acme", "Initech")[number] for email, number in works_at.items()
        }
        assert {person["shoe_size"] for person in people} == {38, 39}


def test_exporting_for_a_warehouse(shell: pexpect.spawn, service: RunningService) -> None:
    for number in range(40):
        create(service, "people", email=f"p{number}@acme.com", score=number)
    follow(shell, read_page("docs/guides/warehouse-export.md"))
    assert Path("changes.jsonl").read_text() == ""


def test_checking_the_data(shell: pexpect.spawn) -> None:
    Path("checks").mkdir()
    follow(shell, read_page("docs/guides/check-data.md"))


def test_keys_without_secrets(program: Path) -> None:
    with open_shell(Path.cwd(), crmctl=program) as shell:
        follow(shell, read_page("docs/guides/keys-without-secrets.md"))


def test_a_test_double(program: Path) -> None:
    """This environment has pytest; naming the plugin covers an installation from before the plugin existed."""
    (Path.cwd() / "accounts").mkdir()
    pytest_here = f"{sys.executable} -m pytest -p crmctl.pytest_plugin -p no:cacheprovider"
    with open_shell(Path.cwd(), crmctl=program) as shell:
        follow(shell, read_page("docs/guides/test-against-a-double.md"), lambda line: re.sub("^pytest", pytest_here, line))


def test_undoing(shell: pexpect.spawn, service: RunningService) -> None:
    create(service, "people", email="ada@acme.com", name="Ada Lovelace", score=97)
    create(service, "people", email="alan@example.org", name="Alan Turing", score=88.5)
    follow(shell, read_page("docs/guides/undo-an-import.md"))
    assert {each["data"]["email"] for each in records_of(service, "people")} == {"ada@acme.com", "alan@example.org"}


def test_asking_in_sql(shell: pexpect.spawn, service: RunningService) -> None:
    companies = [create(service, "companies", name=name) for name in ("Acme", "Initech")]
    for number in range(40):
        status = "new" if number % 4 else "customer"
        create(service, "people", email=f"p{number}@acme.com", score=number, status=status, company=companies[number % 2])
    follow(shell, read_page("docs/guides/questions-in-sql.md"))


@pytest.mark.needs("git")
def test_an_organization_in_git(shell: pexpect.spawn, service: RunningService) -> None:
    type_line(shell, "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org")
    acme = create(service, "companies", name="Acme")
    create(service, "people", email="ada@acme.com", name="Ada Lovelace", job_title="Engineer", company=acme)
    for number in range(5):
        create(service, "people", email=f"p{number}@acme.com", name=f"Person {number}", company=acme)
    follow(shell, read_page("docs/guides/organization-in-git.md"))
    assert "ada@acme.com" not in Path("test-data/records/people.jsonl").read_text()


def test_checking_in_ci() -> None:
    """test_ci runs its workflow files."""
    text = (ROOT / "docs/guides/check-imports-in-ci.md").read_text(encoding="utf-8")
    for name in ("github.yml", "gitlab.yml"):
        assert f"(../ci/{name})" in text
        assert (ROOT / "docs/ci" / name).is_file()


def test_every_guide_is_listed_and_followed() -> None:
    """test_everyday_tasks follows PAGE."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    followed = Path(__file__).read_text(encoding="utf-8")
    for guide in GUIDES:
        assert f"(guides/{guide.name})" in index
        assert guide == PAGE or f'"docs/guides/{guide.name}"' in followed


def create(service: RunningService, slug: str, **data: Any) -> str:
    """Create a record and return its id."""
    answer = service.client.post(f"/api/v1/objects/{service.object_id(slug)}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    record_id: str = answer.json()["id"]
    return record_id


def records_of(service: RunningService, slug: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = service.client.get(f"/api/v1/objects/{service.object_id(slug)}/records").json()["records"]
    return records


def test_merging_duplicates(shell: pexpect.spawn, service: RunningService) -> None:
    acme = create(service, "companies", name="Acme")
    create(service, "people", email="alan@example.org", name="Alan Turing")
    create(service, "people", email="ada@acme.com", name="Ada Lovelace", phone="+44 20 7946 0958", job_title="Engineer", company=acme)
    other = create(service, "people", email="a.lovelace@gmail.com", name="Ada Lovelase", phone="+442079460958")
    grace = create(service, "people", email="grace@navy.mil", name="Grace Hopper", phone="+12025550143", job_title="Admiral")
    create(service, "people", email="grace.hopper@navy.mil", name="Grace Hoper", phone="+1 202 555 0143")
    create(service, "deals", name="Engine", contact=other)
    link = {"objectId": service.object_id("people"), "recordId": grace}
    call = {"title": "Call", "summary": "", "linkedRecords": [link], "participants": []}
    assert service.client.post("/api/v1/activities", json=call).is_success
    follow(shell, read_page("docs/guides/merge-duplicates.md"))
    people = {person["data"]["name"]: person for person in records_of(service, "people")}
    assert set(people) == {"Ada Lovelace", "Ada Lovelase", "Grace Hopper", "Grace Hoper", "Alan Turing"}
    assert people["Ada Lovelace"]["data"]["job_title"] == "Countess"
    [deal] = records_of(service, "deals")
    assert deal["data"]["contact"] == people["Ada Lovelase"]["id"]
    [activity] = service.client.get("/api/v1/activities").json()["activities"]
    assert [one["recordId"] for one in activity["linkedRecords"]] == [people["Grace Hopper"]["id"]]
