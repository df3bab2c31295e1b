"""Numbers of up to 1,000 digits on every path from a user or a file to the wire and back: no digit is lost or invented."""

from __future__ import annotations

import csv
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from crmctl.errors import RejectedError
from crmctl.files.cell_values import ValueOptions
from crmctl.files.export_formats import Layout, texts, write_file
from crmctl.files.mapping import MappingOptions, build_mapping
from crmctl.files.rows import SourceOptions
from crmctl.files.sources import open_source
from crmctl.files.validation import encoded_payloads, entry_of, payloads
from crmctl.models import jsontext
from crmctl.plan.import_plan import ImportPlan, before_image
from crmctl.plan.plan_file import fingerprint
from crmctl.values.composites import check_fields, parse_assignments
from crmctl.values.equality import canonical, is_unchanged, key_form
from crmctl.write.effect import StepStanding, standing
from tests.cli.conftest import crm, service  # noqa: F401 - fixtures
from tests.support.bulkfiles import attribute
from tests.support.inprocess import run_here
from tests.support.service import RunningService

SCORE, AMOUNT = attribute("score", "number"), attribute("amount", "currency")
ATTRIBUTES = [SCORE, AMOUNT]
KNOWN = {one.slug: one for one in ATTRIBUTES}


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """Draw a number in plain digits, as people and programs write it: any length, often near the limit of a float."""
    count = draw(st.integers(1, 40) | st.sampled_from([15, 16, 17, 18, 19, 20, 38, 308, 309, 310, 999, 1000]))
    digits = draw(st.text("0123456789", min_size=count, max_size=count))
    whole = draw(st.integers(0, count))
    sign = draw(st.sampled_from(["", "-"]))
    before, after = digits[:whole].lstrip("0") or "0", digits[whole:]
    return f"{sign}{before}.{after}" if after and draw(st.booleans()) else f"{sign}{digits.lstrip('0') or '0'}"


NUMBERS = st.lists(spelled(), min_size=1, max_size=8)


def says(value: Any, text: str) -> None:
    """Whether the value sent equals the number in the text."""
    assert Decimal(jsontext.dumps(value)) == Decimal(text)


def read(path: Path, format: str) -> list[dict[str, Any]]:
    source = open_source(path, SourceOptions(format=format), name=path.name)
    mapping = build_mapping(source.header, ATTRIBUTES, MappingOptions(), header_complete=source.header_complete)
    rows = list(payloads(source, mapping, ATTRIBUTES, ValueOptions()))
    assert [finding for row in rows for finding in row.findings] == []
    sent = [entry_of(row, with_id=False).data for row in encoded_payloads(source, mapping, ATTRIBUTES, ValueOptions())]
    assert [entry_of(row, with_id=False).data for row in rows] == sent
    return sent


def write_csv(path: Path, numbers: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["score", "amount"], *([number, number] for number in numbers)])
    path.write_text(text.getvalue())


def write_jsonl(path: Path, numbers: list[str]) -> None:
    path.write_text("".join(f'{{"score": {number}, "amount": {number}}}\n' for number in numbers))


def write_xlsx(path: Path, numbers: list[str]) -> None:
    book = openpyxl.Workbook()
    for row in [["score", "amount"], *([number, number] for number in numbers)]:
        book.active.append(row)
    book.save(path)


def write_parquet(path: Path, numbers: list[str]) -> None:
    parquet.write_table(pyarrow.table({"score": numbers, "amount": numbers}), path)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "xlsx": write_xlsx, "parquet": write_parquet}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=NUMBERS)
@pytest.mark.parametrize("format", WRITERS)
def test_a_file_keeps_every_digit_and_so_does_an_export_of_it(tmp_path: Path, format: str, numbers: list[str]) -> None:
    path = tmp_path / f"numbers.{format}"
    WRITERS[format](path, numbers)
    sent = read(path, format)
    for data, number in zip(sent, numbers, strict=True):
        says(data["score"], number)
        says(data["amount"], number)
    wires = [jsontext.dumps({"id": "1", "data": data, "createdAt": None, "updatedAt": None}) for data in sent]
    out = tmp_path / f"out.{format}"
    layout = Layout(format, ATTRIBUTES)
    if format in ("csv", "jsonl"):
        out.write_text("".join(texts(layout, wires)))
    else:
        write_file(out, layout, lambda: wires)
    assert read(out, format) == sent


@settings(max_examples=60, deadline=None)
@given(text=spelled())
def test_an_assignment_keeps_every_digit(text: str) -> None:
    for assignment in (f"score={text}", f"score:={text}", f"amount={text}", f"amount.amount={text}"):
        (value,) = parse_assignments([assignment], ATTRIBUTES).fields.values()
        says(value["amount"] if isinstance(value, dict) else value, text)
    given_data = jsontext.loads(f'{{"score": {text}}}', unique_keys=True)
    check_fields(given_data)
    says(given_data["score"], text)
    plan = ImportPlan(mapping=MappingOptions(set_values=(f"score={text}",)))
    kept = ImportPlan.from_document(jsontext.loads(jsontext.dumps(plan.to_document())))
    says(build_mapping(["amount"], ATTRIBUTES, kept.mapping).constants["score"], text)


@settings(max_examples=50, deadline=None)
@given(one=spelled(), other=spelled(), place=st.integers(0, 1100))
def test_two_numbers_are_the_same_when_they_are_and_only_then(one: str, other: str, place: int) -> None:
    digits = [index for index, letter in enumerate(one) if letter.isdigit()]
    index = digits[place % len(digits)]
    near = f"{one[:index]}{int(one[index]) % 9 + 1}{one[index + 1 :]}"  # one digit differs, at any place
    near = near if re.match("-?(0[.]|0$|[1-9])", near) else one
    zeros = one if len(one) > 990 else f"{one}000" if "." in one else f"{one}.000"
    for written, current in ((one, other), (one, near), (one, zeros)):
        alike = Decimal(written) == Decimal(current)
        sent, there = jsontext.loads(f'{{"score": {written}, "amount": {written}}}'), jsontext.loads(f'{{"score": {current}}}')
        assert is_unchanged({"score": sent["score"]}, there, KNOWN) is alike
        assert (canonical(sent["score"]) == canonical(there["score"])) is alike
        assert (key_form("number", sent["score"]) == key_form("number", there["score"])) is alike
        assert alike or before_image({"score": sent["score"]}, there) == there
        assert (standing({"score": None}, {"score": sent["score"]}, there, KNOWN)[0] is StepStanding.AFTER) is alike
        if not alike:
            assert fingerprint(sent) != fingerprint({"score": there["score"], "amount": there["score"]})


@pytest.mark.parametrize("text", ["1e999", "-1e999", "1E+400", "2e308", "1e99999", "1e-1001", "9" * 1001, "0." + "1" * 1001])
@pytest.mark.parametrize("form", ["score={}", "score:={}", "amount={}", "amount.amount={}"])
def test_a_number_that_cannot_be_sent_is_refused(text: str, form: str) -> None:
    with pytest.raises(RejectedError, match=r"^(score|amount)") as caught:
        parse_assignments([form.format(text)], ATTRIBUTES)
    assert caught.value.code == "invalid_number"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_text_without_a_number_is_refused_on_every_path(crm: RunningService, text: str) -> None:  # noqa: F811
    run_here("records", "create", "people", "--set", f"score={text}").exits(9)
    run_here("records", "create", "people", "--set", f"score:={text}").exits(2)
    run_here("records", "create", "people", "--data", f'{{"score": {text}}}').exits(2)
    for name, content in (("a.csv", f"score\n{text}\n"), ("a.jsonl", f'{{"score": {text}}}\n')):
        Path(name).write_text(content)
        run_here("bulk", "import", "people", name).exits(9)
    assert run_here("records", "count", "people").ok().json() == {"count": 0}


def test_a_number_beyond_range_is_named_with_its_place_before_anything_is_sent(crm: RunningService) -> None:  # noqa: F811
    Path("a.csv").write_text("email,score\na@x.com,1\nb@x.com,1e999\n")
    Path("a.jsonl").write_text('{"email": "a@x.com", "score": 1}\n{"email": "b@x.com", "score": 1e999}\n')
    Path("b.jsonl").write_text('{"name": "a"}\n{"name": "b", "amount": {"amount": -1e400, "currency": "EUR"}}\n')
    for name, line, column in (("a.csv", 3, "score"), ("a.jsonl", 2, "score")):
        (finding,) = run_here("bulk", "import", "people", name).exits(9).error()["details"]["findings"]
        assert (finding["line"], finding["column"], finding["code"]) == (line, column, "invalid_number")
    (finding,) = run_here("bulk", "import", "deals", "b.jsonl").exits(9).error()["details"]["findings"]
    assert (finding["line"], finding["column"]) == (2, "amount")
    for options in (["--set", "score=1e999"], ["--set", "score:=1e999"], ["--data", '{"score": 1e999}']):
        assert "score" in run_here("records", "create", "people", *options).exits(9).error()["message"]
    assert run_here("records", "count", "people").ok().json() == {"count": 0}
    for options in (["--set", 'meta:={"a": 1, "a": 2}'], ["--data", '{"score": 1, "score": 2}']):
        run_here("records", "create", "people", *options).exits(2)


def test_big_numbers_survive_an_import_an_update_a_plan_and_its_undo(crm: RunningService) -> None:  # noqa: F811
    numbers = ["9007199254740993", "9007199254740992", "-9007199254740993", "1" * 309, "7" * 999, "0." + "3" * 900, "123456789012345678.5"]

    def there() -> list[str]:
        run_here("bulk", "export", "people", "-O", "out.jsonl", "--yes").ok()
        found = {record["email"]: record["score"] for record in map(_record, Path("out.jsonl").read_text().splitlines())}
        return [found[f"p{place}@x.com"] for place in range(len(numbers))]

    def file(values: list[str]) -> None:
        Path("a.csv").write_text("email,score\n" + "".join(f"p{place}@x.com,{value}\n" for place, value in enumerate(values)))

    file(numbers)
    run_here("bulk", "import", "people", "a.csv").ok()
    assert [Decimal(value) for value in there()] == [Decimal(value) for value in numbers]
    assert run_here("bulk", "import", "people", "a.csv", "--key", "email").ok().json()["unchanged"] == len(numbers)
    changed = [f"{value[:-1]}{(int(value[-1]) + 1) % 10}" for value in numbers]
    file(changed)
    run_here("bulk", "import", "people", "a.csv", "--key", "email", "--plan", "a.plan").ok()
    job = run_here("bulk", "apply", "a.plan").ok().json()
    assert job["updated"] == len(numbers)
    assert [Decimal(value) for value in there()] == [Decimal(value) for value in changed]
    run_here("bulk", "undo", job["job"], "--yes").ok()
    assert [Decimal(value) for value in there()] == [Decimal(value) for value in numbers]


def _record(line: str) -> dict[str, str]:
    data: dict[str, str] = json.loads(line, parse_int=str, parse_float=str)["data"]
    return data
