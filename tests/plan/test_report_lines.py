"""Every finding of a report stands on its physical line of the file, for every file format, in the form its reader expects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import openpyxl
import pytest

from tests.support.cli import Result
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("reports")) as service:
        yield service


@pytest.fixture
def here(running: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRMCTL_BASE_URL", running.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", running.key)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(name: str, *options: str, form: str = "github") -> Result:
    return run_here("bulk", "import", "people", name, "--dry-run", "--report", form, *options)


def places(out: str) -> list[tuple[int, str]]:
    """Return line and code of every annotation; `3-4` for several lines."""
    found = re.findall(r"^::(?:error|warning) file=.*?,line=(\d+)(?:,endLine=(\d+))?,title=(\w+)::", out, re.MULTILINE)
    return [(int(last or first), code) for first, last, code in found]


BAD = "invalid_number"
LINES = [
    ("bom.csv", '\ufeffemail,score\r\na@x.io,1\r\n"b\r\n@x.io",2\r\n\r\nc@x.io,bad\r\n', [(4, "invalid_email"), (6, BAD)]),
    ("cr.csv", "email,score\ra@x.io,1\rb@x.io,bad\r", [(3, BAD)]),
    ("quoted.csv", 'email,notes,score\ra@x.io,"x\ry",1\r\rb@x.io,,bad', [(5, BAD)]),
    ("sep.csv", "sep=;\r\nemail;score\r\na@x.io;1\r\nb@x.io;bad\r\n", [(4, BAD)]),
    ("blank.csv", "\n\nemail,score\n\n\na@x.io,1\n\nb@x.io,bad\n", [(8, BAD)]),
    ("several.csv", "email,score,birthday\na@x.io,bad,never\nb@x.io,1,31/31/2020", [(2, BAD), (2, "invalid_date"), (3, "invalid_date")]),
    ("ragged.csv", 'email,score\na@x.io\nb@x.io,1,2\n"c@x.io,3\n', [(2, "too_few_cells"), (3, "too_many_cells"), (4, "unclosed_quote")]),
    ("header.csv", "\n\nemail,scroe\na@x.io,1\n", [(3, "unknown_column")]),
    ("twice.csv", "sep=,\nemail,email\na@x.io,1\n", [(2, "duplicate_column")]),
    ("comment.csv", "# a comment\nemail,score\na@x.io,1\n", [(1, "unknown_column")]),
    ("bytes.csv", b"email\na@x.io\n\xff\xff\n", [(3, "undecodable")]),
    (
        "rows.jsonl",
        '\ufeff\r\n{"email":"a@x.io"}\r\n\r\n{"email":\r\n{"score":"bad"}\r\n[1]',
        [(4, "invalid_json"), (5, BAD), (6, "not_an_object")],
    ),
    ("array.json", '\n[\n {"email":"a@x.io"},\n\n {"email":"b@x.io",\n "score":"bad"}\n]', [(6, BAD)]),
    ("cut.json", '[{"email":"a@x.io"},\n\n {"email":', [(3, "invalid_json")]),
    ("many.csv", "email,score\n" + "".join(f"a{n}@x.io,bad\n" for n in range(25)), [(n + 2, BAD) for n in range(25)]),
]


@pytest.mark.parametrize(("name", "content", "expected"), LINES, ids=[str(case[0]) for case in LINES])
def test_findings_on_their_lines(here: Path, name: str, content: str | bytes, expected: list[tuple[int, str]]) -> None:
    (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert places(report(name).out) == expected


def test_an_unknown_key_of_json_lines_names_no_wrong_line(here: Path) -> None:
    (here / "keys.jsonl").write_text('{"email":"a@x.io"}\n{"email":"b@x.io","scroe":1}\n')
    assert run_here("bulk", "import", "people", "keys.jsonl").exits(2).error()["details"] == {"columns": ["scroe"]}


def test_rows_of_a_sheet(here: Path) -> None:
    """Empty, hidden and merged rows count: the line is the number that Excel shows."""
    book = openpyxl.Workbook()
    sheet = book.active
    for place, value in {"A3": "email", "B3": "score", "A6": "a@x.io", "B6": "bad", "A8": "b@x.io", "B8": "bad"}.items():
        sheet[place] = value
    sheet.merge_cells("A3:A4")
    sheet.row_dimensions[8].hidden = True
    book.save(here / "people.xlsx")
    assert places(report("people.xlsx").out) == [(6, BAD), (8, BAD)]
    sheet["B3"] = "scroe"
    book.save(here / "people.xlsx")
    assert places(report("people.xlsx").out) == [(3, "unknown_column")]


def test_two_rows_of_one_key_are_both_named(here: Path) -> None:
    (here / "keys.csv").write_text("email,score\na@x.io,1\n\nb@x.io,2\na@x.io,3\n")
    said = report("keys.csv", "--mode", "upsert", "--key", "email").out
    assert places(said) == [(5, "duplicate_value")]
    assert "line 2 has the same value" in said


def test_names_and_values_that_each_form_must_escape(here: Path) -> None:
    name = "a,b:c%d\ne|<f>&\x01.csv"
    (here / name).write_text('email,score\n"a\x02@x.io","1|`x`<b>\n*q*"\n')
    first = report(name).out.splitlines()[0]
    assert first.startswith("::error file=a%2Cb%3Ac%25d%0Ae|<f>&\x01.csv,line=2,endLine=3,title=invalid_email::")
    cases = ElementTree.fromstring(report(name, form="junit").out).iter("testcase")
    assert [case.get("line") for case in cases] == ["2", "2", None]
    rows = [line for line in report(name, form="markdown").out.splitlines() if line.startswith("| error")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6, 6]
    assert r"1\|\`x\`\<b\> \*q\*" in rows[1]
