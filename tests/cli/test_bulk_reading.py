"""Odd files through the installed program: a refusal names the missing option, and an import keeps the file's meaning."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from crmctl.models import jsontext
from tests.support.inprocess import run_here
from tests.support.service import RunningService
from tests.support.sheetreading import equals_truth
from tests.support.sheets import ATTRIBUTES, clean_sheet
from tests.support.spoiledsheets import ODDITIES, Sheet


def imported(*arguments: str) -> Any:
    return run_here("bulk", "import", "people", *arguments)


def listed(fields: str) -> list[dict[str, Any]]:
    shown = run_here("records", "list", "people", "--order", "asc", "--fields", fields).ok().json()
    return [record.get("data", record) for record in shown]


def test_an_encoding_is_named_never_guessed(crm: RunningService) -> None:
    Path("people.csv").write_bytes("Email,Notes\na@x.com,fine\nb@x.com,Zoë in Köln\n".encode("cp1252"))
    for arguments in (("bulk", "import", "people", "people.csv"), ("bulk", "inspect", "people.csv")):
        error = run_here(*arguments).exits(2).error()
        assert "0xeb at offset 35, line 3" in error["message"]
        assert "--encoding cp1252" in error["hint"]
        assert error["details"] == {"offset": 35, "line": 3, "encoding": "utf-8", "likely": "cp1252"}
    assert run_here("records", "count", "people").ok().json() == {"count": 0}
    assert run_here("bulk", "inspect", "people.csv", "--encoding", "cp1252").ok().json()["dialect"]["encoding"] == "cp1252"
    done = imported("people.csv", "--encoding", "cp1252", "--ignore-unknown", "--map", "Notes=job_title", "-o", "table").ok()
    assert "read as csv, separated by ',', cp1252" in done.err
    assert [record["job_title"] for record in listed("job_title")] == ["fine", "Zoë in Köln"]


def test_national_numbers_need_a_region(crm: RunningService) -> None:
    Path("people.csv").write_text("Email,Phone\na@x.com,+44 20 7946 0001\nb@x.com,020 7946 0002\n")
    error = imported("people.csv").exits(9).error()
    [finding] = error["details"]["findings"]
    assert (finding["code"], finding["line"], finding["column"], finding["value"]) == ("national_phone", 3, "Phone", "020 7946 0002")
    assert "--default-region GB" in finding["hint"]
    imported("people.csv", "--default-region", "UK").exits(2)
    imported("people.csv", "--default-region", "gb").ok()
    assert [record["phone"] for record in listed("phone")] == ["+442079460001", "+442079460002"]
    imported("people.csv", "--default-region", "none", "--again", "--map", "Email=").ok()
    assert [record["phone"] for record in listed("phone")][2:] == ["+44 20 7946 0001", "020 7946 0002"]


def test_blank_cells_and_tokens_clear_values_on_request(crm: RunningService) -> None:
    Path("people.csv").write_text("email,phone,score\na@x.com,+442079460001,1\nb@x.com,+442079460002,2\n")
    imported("people.csv").ok()
    Path("changes.csv").write_text("email,phone,score\na@x.com,,\nb@x.com,<none>,<none>\n")
    imported("changes.csv", "--key", "email", "--blank", "phone=clear", "--clear-token", "<none>").ok()
    found = listed("email,phone,score")
    assert [record.get("phone") for record in found] == [None, None]
    assert [record.get("score") for record in found] == [1, None]
    said = imported("changes.csv", "--key", "email", "--blank", "fone=clear").exits(2).error()
    assert "no column 'fone'" in said["message"]


def test_an_unknown_option_is_reported_once_with_its_rows(crm: RunningService) -> None:
    Path("people.csv").write_text("email,status\n" + "".join(f"p{number}@x.com,contcted\n" for number in range(30)) + "z@x.com,nwe\n")
    details = imported("people.csv").exits(9).error()["details"]
    assert [(option["value"], option["rows"], option["line"]) for option in details["unknownOptions"]] == [
        ("contcted", 30, 2),
        ("nwe", 1, 32),
    ]
    assert details["unknownOptions"][0]["hint"].startswith("did you mean contacted")
    said = imported("people.csv", "-o", "table").exits(9).err
    assert said.count("contcted") == 1
    assert "30 rows, the first on line 2" in said


def flags(sheet: Sheet) -> list[str]:
    """Return the options that declare the columns of a sheet."""
    values, said = sheet.values, []
    for option, by_column in (("--blank", "blank"), ("--decimal-mark", "decimal_marks"), ("--date-format", "date_formats")):
        for column, value in values.get(by_column, {}).items():
            said += [option, f"{column}={value}" if column else value]
    for option, texts in (("--null-string", "null_strings"), ("--clear-token", "clear_tokens")):
        for text in values.get(texts, ()):
            said += [option, text]
    said += ["--default-region", values["default_region"]] if "default_region" in values else []
    for name, value in sheet.source.items():
        said += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", value]
    return said


@pytest.mark.parametrize("seed", [3, 8])
def test_the_service_receives_the_meaning_of_an_odd_file(crm: RunningService, seed: int) -> None:
    chance = random.Random(seed)
    sheet = clean_sheet(chance)
    for mutate in chance.sample(ODDITIES, 9):
        mutate(sheet)
    made = crm.client.post(
        "/api/v1/objects", json={"pluralName": "Sheets", "singularName": "Sheet", "description": "", "slug": "sheets"}
    ).json()
    path = f"/api/v1/objects/{made.get('object', made)['id']}"
    for one in ATTRIBUTES:
        body = {"name": one.slug, "type": one.type, "isRequired": bool(one.is_required), "isUnique": bool(one.is_unique)}
        assert crm.client.post(f"{path}/attributes", json=body | ({"config": one.config} if one.config else {})).is_success
    Path("sheet.csv").write_bytes(sheet.write()[0])
    run_here("bulk", "import", "sheets", "sheet.csv", *flags(sheet)).ok()
    answer = jsontext.loads(crm.client.get(f"{path}/records", params={"order": "asc"}).content)
    wanted = [{slug: value for slug, value in row.data.items() if value is not None} for row in sheet.rows]
    came = [{slug: value for slug, value in record["data"].items() if value is not None} for record in answer["records"]]
    assert len(came) == len(wanted)
    assert all(equals_truth(one, other) for one, other in zip(came, wanted, strict=True)), (came, wanted)
