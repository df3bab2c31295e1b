"""`bulk inspect FILE --duplicates` of odd files: a clear answer or the reason why crmctl cannot read the file, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inprocess import run_here

TWO = "email,name\r\nada@x.com,Ada\r\nADA@x.com,A\r\n"


@pytest.mark.parametrize(
    ("name", "content", "match", "rows"),
    [
        ("bom.csv", ("\ufeff" + TWO).encode(), ["email:email"], 1),
        ("utf16.csv", TWO.encode("utf-16"), ["email:email"], 1),
        ("header.csv", b"email,name\n", ["email+name:text"], 0),
        ("one.csv", b"email\nada@x.com\nada@x.com\nbob@x.com\n", ["email:email"], 1),
        ("numbers.csv", b"a,b\n1,2\n1,2\n3,4\n", ["a+b:text"], 1),
        ("nothing.csv", b"a\nn/a\nn/a\n000\n", ["a:text"], 1),
        ("twice.csv", b"email,email\nada@x.com,b@x.com\nada@x.com,c@x.com\n", ["email:email"], 1),
        ("ragged.csv", b"email,name\nada@x.com\nada@x.com,A,extra\nada@x.com,B\nada@x.com,C\n", ["email:email"], 1),
        ("nested.jsonl", b'{"x":{"y":[1,{"z":2}]}}\n{"x":{"y":[1,{"z":2}]}}\n{"x":[]}\n[1]\nnull\n', ["x:text"], 1),
        ("bad.jsonl", b'{"email":"ada@x.com"}\n{broken\n{"email":"ada@x.com"}\n', ["email:email"], 1),
        ("half.jsonl", b'{"email":"a@x.com","n":"\\ud800"}\n{"email":"a@x.com","n":"\\ud800"}\n', [], 0),
    ],
)
def test_duplicates_in_odd_files(name: str, content: bytes, match: list[str], rows: int) -> None:
    Path(name).write_bytes(content)
    found = run_here("bulk", "inspect", name, "--duplicates").ok().json()["duplicates"]
    assert (found["match"], found["rows"]) == (match, rows)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("empty.csv", b"", "empty_file"),
        ("blank.csv", b"\n\n", "empty_file"),
        ("utf8.csv", b"email,n\na@x.com,J\xf6rg\xff\n", "undecodable"),
    ],
)
def test_an_unreadable_file_is_explained(name: str, content: bytes, code: str) -> None:
    Path(name).write_bytes(content)
    refused = run_here("bulk", "inspect", name, "--duplicates")
    assert (refused.code, refused.error()["code"], refused.out) == (2, code, "")


def test_a_large_file_is_compared_by_blocks() -> None:
    lines = (f"p{number % 29_000}@x.com,Person {number}\n" for number in range(30_000))
    Path("large.csv").write_text("email,name\n" + "".join(lines))
    found = run_here("bulk", "inspect", "large.csv", "--duplicates").ok().json()["duplicates"]
    assert (found["groups"], found["rows"]) == (1_000, 1_000)
