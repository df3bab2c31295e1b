"""`bulk export` with the common options: in every format it obeys each, or refuses it before it reads a record."""

from __future__ import annotations

import csv
import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crmctl.files.sources import open_source
from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.plainservice import PlainService
from tests.support.service import RunningService

FILES = ["a.jsonl", "a.csv", "a.tsv", "a.json", "a.parquet", "a.xlsx", "a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.json.gz"]
TEXT = ["jsonl", "csv", "tsv", "json"]


def asked_for_records(crm: RunningService) -> bool:
    return any(path.endswith("/records") for _, path in requests_of(crm))


def wanted(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of a record exported with --fields score,id, whatever the format."""
    assert list(record) in (["score", "id"], ["data", "id"])
    return (str(record["data"]["score"]) if "data" in record else str(record["score"]).removesuffix(".0"), record["id"])


def read(path: str) -> list[tuple[Any, ...]]:
    """Return the rows of an exported file, read by the importer or as JSON."""
    if ".json" in path:
        text = gzip.decompress(Path(path).read_bytes()).decode() if path.endswith(".gz") else Path(path).read_text()
        return [wanted(one) for one in (json.loads(text) if "jsonl" not in path else map(json.loads, text.splitlines()))]
    source = open_source(Path(path), name=path)
    return [wanted(dict(zip(source.header, row.cells, strict=True))) for row in source.rows()]


def test_fields_select_the_exported_values_in_every_format(people: list[str], crm: RunningService) -> None:
    expected = [(str(number), one) for number, one in enumerate(people, 1)]
    for file in FILES:
        summary = run_here("bulk", "export", "people", "-O", file, "--fields", "score,id").ok().json()
        assert (summary["rows"], summary["file"]) == (120, file)
        assert read(file) == expected
        assert json.loads(Path(f"{file}.manifest.json").read_text())["columns"] == ["score", "id"]
    for kind in TEXT:
        out = run_here("bulk", "export", "people", "-o", kind, "--fields", "score,id").ok().out
        Path(f"out.{kind}").write_text(out)
        assert read(f"out.{kind}") == expected


def test_a_part_of_a_value_can_be_exported(crm: RunningService) -> None:
    run_here("records", "create", "people", "--set", "email=a@acme.com", "--set", "name.first=Ada", "--set", "name.last=L").ok()
    given = ("bulk", "export", "people", "--fields", "name.first,email")
    assert list(csv.reader(run_here(*given, "-o", "csv").ok().out.splitlines())) == [["name.first", "email"], ["Ada", "a@acme.com"]]
    assert run_here(*given).ok().lines() == [{"data": {"name": {"first": "Ada"}, "email": "a@acme.com"}}]


def test_an_unknown_field_is_refused_before_a_record_is_read(crm: RunningService) -> None:
    for target in (*(["-O", file] for file in FILES), *(["-o", kind] for kind in TEXT)):
        refused = run_here("bulk", "export", "people", *target, "--fields", "id,emial").exits(2)
        assert refused.error()["code"] == "unknown_field"
        assert "email" in refused.error()["hint"]
        assert (refused.out, list(Path.cwd().glob("a.*"))) == ("", [])
    assert not asked_for_records(crm)


REFUSED = [
    (["-q", "[].id"], "--query"),
    (["-q", "rows]"], "--query"),
    (["-O", "a.csv", "-q", "rows]"], "--query"),
    (["-O", "a.csv", "-q", "length(rows)"], "--query"),
    (["-o", "json", "--format", "csv"], "--format csv and --output json"),
    (["--json", "--format", "csv"], "--format csv and --output json"),
    (["--json", "-o", "csv"], "--json and --output csv"),
    (["-o", "table"], "not table"),
    (["--excel-safe"], "--excel-safe is for csv and tsv"),
    (["--excel-safe", "-O", "a.parquet"], "--excel-safe is for csv and tsv"),
    (["--excel-safe", "-O", "a.csv", "--format", "json"], "--excel-safe is for csv and tsv"),
    (["--restart"], "-O FILE"),
    (["--dry-run"], "--dry-run"),
]


def test_options_an_export_cannot_obey_are_refused_before_any_request(crm: RunningService) -> None:
    for options, said in REFUSED:
        refused = run_here("bulk", "export", "people", *options).exits(2)
        assert said in refused.err
        assert refused.out == ""
        assert list(Path.cwd().glob("a.*")) == []
    assert requests_of(crm) == []


def test_a_pipe_needs_no_permission_to_be_replaced(people: list[str]) -> None:
    os.mkfifo("people.csv")
    with ThreadPoolExecutor(1) as other:
        read = other.submit(Path("people.csv").read_text)
        assert run_here("bulk", "export", "people", "-O", "people.csv", "--fields", "id", "-q", "rows").ok().json() == 120
        assert read.result().splitlines() == ["id", *people]


def test_query_and_output_beside_a_file_are_about_the_summary(people: list[str]) -> None:
    given = ("bulk", "export", "people", "-O", "a.csv", "--yes")
    assert run_here(*given, "-q", "rows").ok().json() == 120
    assert run_here(*given, "-q", "[format, rows]", "--fields", "id").ok().json() == ["csv", 120]
    assert run_here(*given, "-o", "jsonl", "--quiet").ok().lines()[0]["rows"] == 120
    assert run_here("bulk", "export", "people", "--quiet").ok().err == ""


def test_a_deletion_whose_result_could_not_be_shown_does_not_begin(people: list[str], crm: RunningService) -> None:
    Path("ids.txt").write_text("\n".join(people[:3]))
    Path("people.csv").write_text("email\na@acme.com\n")
    for wrong in (["--fields", "deletd"], ["-q", "deleted]"], ["-q", "length(deleted)"]):
        run_here("bulk", "delete", "people", "--ids", "ids.txt", "--yes", *wrong).exits(2)
        run_here("bulk", "import", "people", "people.csv", *wrong).exits(2)
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
    assert run_here("bulk", "delete", "people", "--ids", "ids.txt", "--yes", "--fields", "deleted").ok().json() == {"deleted": 3}


def test_an_export_finds_an_object_that_another_client_made_anew_under_its_slug() -> None:
    with PlainService() as service:
        assert run_here("bulk", "export", "deals", env=service.env).ok().out == ""
        old = service.object_id("deals")
        for table in (service.objects, service.attributes, service.records):
            table["new"] = table.pop(old)
        service.objects["new"]["id"] = "new"
        assert run_here("bulk", "export", "deals", env=service.env).ok().out == ""
