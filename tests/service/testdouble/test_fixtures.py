"""`crmctl serve --ephemeral --fixture`: accepted fixtures, and one error for all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.testdouble.test_double import ephemeral
from tests.support.cli import run_crmctl

SCHEMA = """
objects:
- slug: projects
  singularName: Project
  pluralName: Projects
  attributes:
  - {slug: name, name: Name, type: text, isUnique: true}
  - {slug: lead, name: Lead, type: reference, config: {allowed_object: people}}
"""


def write(**files: str) -> None:
    folder = Path("data")
    folder.mkdir()
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_tables_load_in_the_order_of_their_references() -> None:
    write(
        schema_yaml=SCHEMA,
        companies_csv="name,domain\nAcme,acme.com\n",
        people_csv="Name,Email,Company.domain\nAda,ada@acme.com,acme.com\n",
        projects_csv="name,lead.email\nEngine,ada@acme.com\n",
    )
    with ephemeral("--fixture", "data", "--seed", "1", "--fault", "* /api/v1/* [nth=2] -> status=500") as double:
        first = double.client.get(f"/api/v1/objects/{double.objects['projects']}/records")
        assert (first.status_code, double.control("GET", "requests").json()[1]["fault"] is not None) == (500, True)
        [project] = double.client.get(f"/api/v1/objects/{double.objects['projects']}/records").json()["records"]
        [person] = double.client.get(double.people()).json()["records"]
        assert (project["data"]["lead"], person["data"]["email"]) == (person["id"], "ada@acme.com")
        double.create(name="Grace")
        # The fixture itself makes no events.
        [delivery] = double.control("GET", "deliveries?count=1&timeout=100").json()
        assert delivery["body"]["data"] == {"name": "Grace"}
        double.control("POST", "reset")
        assert double.client.get(double.people()).json()["records"] == [person]


def test_tables_as_a_spreadsheet_saves_them() -> None:
    write(companies_csv="name;domain\nAcme;acme.com\n")
    Path("data/people.csv").write_text("Name\tEmail\tCompany.domain\nZoë\tzoe@acme.com\tacme.com\n", encoding="utf-16")
    with ephemeral("--fixture", "data") as double:
        [person] = double.client.get(double.people()).json()["records"]
        [company] = double.client.get(f"/api/v1/objects/{double.objects['companies']}/records").json()["records"]
        assert (person["data"]["name"], person["data"]["company"]) == ("Zoë", company["id"])


def test_a_pulled_organization_is_a_fixture() -> None:
    with ephemeral() as double:
        double.create(name="Ada", email="ada@acme.com")
        env = {"CRMCTL_BASE_URL": double.url, "CRMCTL_API_KEY": double.ready["apiKey"]}
        run_crmctl("org", "pull", "crm", env=env).ok()
    with ephemeral("--fixture", "crm") as double:
        [person] = double.client.get(double.people()).json()["records"]
        assert person["data"]["email"] == "ada@acme.com"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "the fixture data is empty"),
        ({"notes_txt": "x"}, "the fixture data holds notes.txt, which is not read"),
        ({"schem_yaml": SCHEMA}, "the fixture data holds schem.yaml, which is not read"),
    ],
)
def test_a_folder_without_a_fixture_is_refused_before_the_start(files: dict[str, str], expected: str) -> None:
    write(**files)
    refused = run_crmctl("serve", "--ephemeral", "--fixture", "data", "-o", "json").exits(2)
    assert (expected in refused.error()["message"], refused.out) == (True, "")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"schema_yaml": "objects: ["}, "the fixture data/schema.yaml is neither JSON nor YAML: line"),
        ({"schema_yaml": SCHEMA.replace("text", "txt")}, "the fixture data/schema.yaml"),
        ({"peple_csv": "name\nAda\n"}, "the fixture data/peple.csv: there is no object 'peple'"),
        ({"people_csv": "nme\nAda\n"}, "the fixture data/people.csv: unknown column: 'nme' (nearest: name)"),
        ({"people_csv": "name,email\nAda,nobody\n"}, "the fixture data/people.csv: line 2, email: not an email address"),
        (
            {"people_csv": "name,company.domain\nAda,acme.com\n"},
            "the fixture data/people.csv: line 2, company: no record has this companies.domain",
        ),
        ({"people_csv": "name\nAda,x\n"}, "the fixture data/people.csv: line 2: 2 cells where the header has 1"),
        ({"people_csv/x": ""}, "the fixture data/people.csv: cannot read data/people.csv: it is a directory"),
        (
            {
                "schema_yaml": SCHEMA.replace("allowed_object: people", "allowed_object: tasks")
                + "- {slug: tasks, singularName: Task, pluralName: Tasks, attributes: [{slug: code, name: C, type: text, isUnique: true}, "
                + "{slug: project, name: P, type: reference, config: {allowed_object: projects}}]}\n",
                "projects_csv": "name,lead.code\nx,y\n",
                "tasks_csv": "code,project.name\ny,x\n",
            },
            "the fixture data/projects.csv: line 2, lead: no record has this tasks.code",
        ),
    ],
)
def test_a_broken_fixture_ends_the_service(files: dict[str, str], expected: str) -> None:
    write(**files)
    refused = run_crmctl("serve", "--ephemeral", "--fixture", "data", "-o", "json").exits(9)
    assert expected in refused.error()["message"], refused.err
    assert refused.out == ""
