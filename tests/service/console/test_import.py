"""Importing CSV and Excel files in the console: columns, check, import, undo, and limits of the file."""

from __future__ import annotations

import gzip
import html
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from crmctl.service.console import record_import
from crmctl.service.console.visits import Visit
from crmctl.service.store.tx import Stamp, Tx
from tests.service.console.conftest import Newcomer, Visitor
from tests.support.plainpages import PlainReader
from tests.support.service import RunningService
from tests.support.stored_records import add

PATH = "/console/records/people/import"
CSV = "E-Mail,Last,Company,Points,Mood\nada@example.com,Lovelace,acme,12.5,=good\ngrace@example.com,Hopper,,many,\n"


@pytest.fixture
def reader(visitor: Visitor) -> PlainReader:
    return visitor.reader()


def people(service: RunningService) -> dict[str, Any]:
    found = service.client.get(f"/api/v1/objects/{service.object_id('people')}/records").json()["records"]
    return {record["data"].get("email"): record["data"] for record in found}


def upload(reader: PlainReader, name: str, content: bytes) -> PlainReader:
    return reader.open(PATH).press("Upload", upload=(name, content))


def words(reader: PlainReader) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", reader.text)).split())


def test_a_file_is_checked_imported_and_undone(service: RunningService, reader: PlainReader) -> None:
    acme = add(service, "companies", name="Acme")
    columns = {"Points": "Score", "Last": "Name: Last name", "Mood": "Notes"}
    upload(reader, "people.csv", CSV.encode()).press("Check", columns)
    assert "Check: 1 new, 0 changed, 0 unchanged, 1 failed. Nothing is imported yet." in words(reader)
    assert re.search(r"3 Points: \W?many\W? is not a number", words(reader)) or "many" in words(reader)
    assert people(service) == {}
    reader.press("Import")
    assert "1 record created" in words(reader)
    assert "1 row was not imported" in words(reader)
    assert people(service) == {
        "ada@example.com": {"email": "ada@example.com", "name": {"last": "Lovelace"}, "company": acme, "score": 12.5, "notes": "=good"}
    }
    page = reader.text
    failed = reader.follow("Download it").answer.content.decode("utf-8-sig").splitlines()
    assert failed[0] == "E-Mail,Last,Company,Points,Mood,_error"
    assert failed[1].startswith("grace@example.com,Hopper,,many,,")
    reader.answer = reader.client.get(
        re.findall(r'action="([^"]+/changed)"', page)[0] + "?at=" + re.findall(r'name="at" value="(\d+)"', page)[0]
    )
    assert "The change is undone" in reader.press("Undo").text
    assert people(service) == {}


def test_an_exact_name_wins_over_one_in_another_case(service: RunningService, reader: PlainReader) -> None:
    exact, other = add(service, "companies", name="Acme"), add(service, "companies", name="ACME")
    text = "email,company\na@example.com,Acme\nb@example.com,ACME\nc@example.com,acme\n"
    upload(reader, "people.csv", text.encode()).press("Check")
    assert "Check: 2 new, 0 changed, 0 unchanged, 1 failed" in words(reader)
    assert "several records are called 'acme'" in words(reader)
    reader.press("Import")
    assert [person["company"] for _, person in sorted(people(service).items())] == [exact, other]


def test_rows_change_only_the_values_they_contain(service: RunningService, reader: PlainReader) -> None:
    add(service, "people", email="ada@example.com", name={"first": "Ada", "last": "Byron"}, score=1)
    add(service, "people", email="grace@example.com", name={"first": "Grace", "last": "Hopper"})
    text = "email,name.surname,score\nADA@example.com,Lovelace,\ngrace@example.com,Hopper,\nnew@example.com,Turing,3\n"
    same_email = {"Existing records": "Change the record with the same Email"}
    upload(reader, "people.csv", text.encode()).press("Check", same_email)
    assert "Check: 1 new, 1 changed, 1 unchanged, 0 failed" in words(reader)
    before = people(service)
    reader.press("Import")
    after = people(service)
    assert after["ADA@example.com"]["name"] == {"first": "Ada", "last": "Lovelace"}
    assert after["ADA@example.com"]["score"] == 1
    assert after["new@example.com"]["score"] == 3
    reader.press("Undo")
    assert people(service) == before


def test_a_workbook_and_an_exported_list_can_be_imported(service: RunningService, reader: PlainReader) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (("email", "score"), ("ada@example.com", 0.5)):
        book.active.append(row)
    content = io.BytesIO()
    book.save(content)
    upload(reader, "people.xlsx", content.getvalue()).press("Import")
    assert people(service)["ada@example.com"]["score"] == 0.5
    exported = reader.client.get("/console/records/people/csv?column=email&column=score&column=name").content
    upload(reader, "people.csv", exported).press("Check", {"Existing records": "Change the record with the same Id"})
    assert "0 new, 0 changed, 1 unchanged, 0 failed" in words(reader)


def test_apostrophes_before_formulas_are_removed(service: RunningService, reader: PlainReader) -> None:
    upload(reader, "people.csv", b"email,notes\nada@example.com,'=1+1\nbo@example.com,'plain\n").press("Import")
    assert {email: person["notes"] for email, person in people(service).items()} == {"ada@example.com": "=1+1", "bo@example.com": "'plain"}


def workbook(sheet: str, padding: int = 0) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        archive.writestr("xl/worksheets/sheet1.xml", sheet + " " * padding)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", b"", "choose a file that is not empty"),
        ("a.csv.gz", gzip.compress(b"email\nada@example.com\n"), "the file is compressed"),
        ("a.json", b'[{"email": "ada@example.com"}]', "neither CSV nor an Excel workbook"),
        ("a.xlsx", b"PK\x03\x04 damaged", "cannot be read as an Excel workbook"),
        ("bomb.xlsx", ("<worksheet>", record_import.MOST_UNPACKED), "far larger than 10,000 rows need"),
        ("rows.xlsx", ("<row/>" * 30_000,), "far larger than 10,000 rows need"),
        ("far.xlsx", ('<dimension ref="A1:XFD1048576"/>',), "far larger than 10,000 rows need"),
        ("cell.xlsx", ('<row r="1048576"><c r="A1048576"/></row>',), "far larger than 10,000 rows need"),
    ],
    ids=["empty", "compressed", "json", "damaged", "bomb", "rows", "dimension", "cell"],
)
def test_unsuitable_files_are_refused(reader: PlainReader, name: str, content: bytes | tuple[Any, ...], problem: str) -> None:
    assert upload(reader, name, content if isinstance(content, bytes) else workbook(*content)).answer.status_code == 400
    assert problem.casefold() in words(reader).casefold()


def test_an_error_keeps_the_spelling_of_names(reader: PlainReader, visitor: Visitor) -> None:
    upload(reader, "export.csv", "email\nM\xfcller\n".encode("latin-1"))
    assert "export.csv is not utf-8" in words(reader)
    visitor.send("/console/members", name="Bob", email="bob@example.com", role="member")
    assert (
        ">bob@example.com is a member already." in visitor.send("/console/members", name="Bob", email="bob@example.com", role="member").text
    )
    assert ">Email must be" in visitor.send("/console/members", name="Bob", email="bob", role="member").text


def test_large_files_and_long_files_are_refused(reader: PlainReader, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"email\n" + b"x" * 50 * 1024 * 1024
    assert visitor.client.post(PATH, data={"token": visitor.form_token()}, files={"file": ("a.csv", large)}).status_code == 413
    monkeypatch.setattr(record_import, "MOST_ROWS", 2)
    rows = "".join(f"p{number}@example.com\n" for number in range(3))
    assert upload(reader, "a.csv", f"email\n{rows}".encode()).press("Import").answer.status_code == 400
    assert "more than 2 rows" in words(reader)


def test_an_upload_during_an_import_does_not_hide_its_result(reader: PlainReader, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(reader, "people.csv", b"email\nada@example.com\n")
    carry_out = record_import._carry_out

    def replaced(tx: Tx, visit: Visit, path: Path, stamp: Stamp) -> record_import.ImportOutcome:
        outcome = carry_out(tx, visit, path, stamp)
        path.unlink()
        return outcome

    monkeypatch.setattr(record_import, "_carry_out", replaced)
    assert reader.press("Import").answer.status_code == 200
    assert "1 record created" in words(reader)


def test_a_file_is_imported_once_and_only_by_its_uploader(service: RunningService, reader: PlainReader, newcomer: Newcomer) -> None:
    upload(reader, "<b>.csv", b"email,<script>\nada@example.com,x\n")
    assert "<script>" not in reader.text.partition("<main")[2]
    address, other = str(reader.answer.url), newcomer(service)
    other.enter_as("member")
    assert other.client.get(address).status_code == 400
    reader.press("Import")
    assert len(people(service)) == 1
    assert reader.client.get(address).status_code == 400
    viewer = newcomer(service)
    viewer.enter_as("viewer")
    assert viewer.client.get(PATH).status_code == 403


def test_an_attribute_that_is_gone_is_named_without_an_option(reader: PlainReader, visitor: Visitor) -> None:
    file = re.findall(r"[0-9a-f]{32}\.csv", upload(reader, "a.csv", b"email\na@b.c\n").text)[0]
    refused = visitor.send(f"{PATH}/columns", file=file, do="import", column0="gone")
    assert refused.status_code == 400
    assert "There is no attribute gone" in html.unescape(refused.text)


def test_the_slower_of_two_identical_imports_is_refused(reader: PlainReader, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    file = re.findall(r"[0-9a-f]{32}\.csv", upload(reader, "a.csv", b"email\na@b.c\n").text)[0]
    place = record_import._place

    def taken(*about: Any, **more: Any) -> Any:
        found = place(*about, **more)
        found.unlink()
        return found

    monkeypatch.setattr(record_import, "_place", taken)
    refused = visitor.send(f"{PATH}/columns", file=file, do="import", column0="email")
    assert refused.status_code == 400
    assert "this file was imported already" in refused.text.lower()
