"""`--value COLUMN:FROM=TO` and the `values` of a map file replace texts of a column; `bulk inspect` proposes similar options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService

FILE = "Name,Branch\nAcme,Software\nInitech,retial\nUmbrella,finance\n"
REPLACED = ("--value", "Branch:Software=technology", "--value", "Branch:retial=retail")


@pytest.fixture(autouse=True)
def _file(crm: RunningService) -> None:
    Path("companies.csv").write_text(FILE, encoding="utf-8")


def industries() -> dict[str, Any]:
    return {record["data"]["name"]: record["data"]["industry"] for record in run_here("records", "list", "companies").ok().json()}


EXPECTED = {"Acme": "technology", "Initech": "retail", "Umbrella": "finance"}


def test_values_are_replaced_by_options() -> None:
    assert run_here("bulk", "import", "companies", "companies.csv", "--map", "Branch=industry").exits(9)
    run_here("bulk", "import", "companies", "companies.csv", "--map", "Branch=industry", *REPLACED).ok()
    assert industries() == EXPECTED


def test_items_of_lists_are_replaced() -> None:
    Path("people.csv").write_text("email,tags\na@x.org,old; vip\nb@x.org,old\nc@x.org,a;b\n", encoding="utf-8")
    Path("people.jsonl").write_text('{"email": "d@x.org", "tags": ["old", "x"]}\n', encoding="utf-8")
    for name in ("people.csv", "people.jsonl"):
        run_here("bulk", "import", "people", name, "--value", "tags:old=new", "--value", "tags:a;b=c").ok()
    tags = {record["data"]["email"]: record["data"]["tags"] for record in run_here("records", "list", "people").ok().json()}
    assert tags == {"a@x.org": ["new", "vip"], "b@x.org": ["new"], "c@x.org": ["c"], "d@x.org": ["new", "x"]}


@pytest.mark.parametrize("name", ["map.yaml", "map.json"])
def test_values_are_replaced_by_a_map_file(name: str) -> None:
    yaml = "Branch: {to: industry, values: {Software: retail, retial: retail}}\nName: name\n"
    json = '{"Branch": {"to": "industry", "values": {"Software": "retail", "retial": "retail"}}, "Name": "name"}'
    Path(name).write_text(yaml if name == "map.yaml" else json, encoding="utf-8")
    # The option wins, and a saved plan keeps both.
    options = ("--map-file", name, "--value", "Branch:Software=technology", "--plan", "companies.plan")
    run_here("bulk", "import", "companies", "companies.csv", *options).ok()
    Path(name).unlink()
    run_here("bulk", "apply", "companies.plan").ok()
    assert industries() == EXPECTED


def test_inspect_proposes_near_options() -> None:
    Path("people.csv").write_text("email,Status\na@x.org,custmer\nb@x.org,customer\nc@x.org,xyz\n", encoding="utf-8")
    report = run_here("bulk", "inspect", "people.csv", "--object", "people").ok().json()
    assert report["value"] == ["Status:custmer=customer"]
    assert "--value Status:custmer=customer" in run_here("bulk", "inspect", "people.csv", "--object", "people", "-o", "table").ok().err


@pytest.mark.parametrize(
    ("company", "key"), [("acme.com", "companies.domain"), ("Acme Inc", "companies.name"), ("01a20ab7-f3ff-7c22-8f85-45a1c1c4a73f", None)]
)
def test_inspect_proposes_ref_for_names_of_records(company: str, key: str | None) -> None:
    Path("people.csv").write_text(f"email,company\na@x.org,{company}\n", encoding="utf-8")
    columns = run_here("bulk", "inspect", "people.csv", "--object", "people").ok().json()["columns"]
    assert columns[1]["note"] == (f"no ids: --ref company={key} finds the records" if key else None)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("Software=technology", "--value takes COLUMN:FROM=TO"),
        ("Branch:Software=", "--value takes COLUMN:FROM=TO"),
        ("Nope:a=b", "the file has no column 'Nope'"),
    ],
)
def test_refusals(option: str, said: str) -> None:
    assert said in run_here("bulk", "import", "companies", "companies.csv", "--map", "Branch=industry", "--value", option).exits(2).err


def test_a_map_file_of_another_shape_is_refused() -> None:
    Path("map.yaml").write_text("Branch: {to: industry, texts: {a: b}}\n", encoding="utf-8")
    error = run_here("bulk", "import", "companies", "companies.csv", "--map-file", "map.yaml").exits(2).error()
    assert "'Branch' is neither a slug nor an object of to and values" in error["message"]
