"""Errors about wrong inputs name the value, the intended meaning and the way out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

ID = "01a214dd-b199-711d-a2ea-a504a75bfc1a"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("wrong"), background=False) as running:
        yield running


@pytest.fixture(autouse=True)
def crm(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        ("records create people --set score=abc", 9, "score: not a number (value 'abc')", "digits with"),
        ("records create people --set status=lost", 9, "status: not an option (value 'lost')", "options: new, "),
        ("records create people --set company=Acme", 9, "company: not a record id (value 'Acme')", "--set company.KEY=VALUE"),
        ("records list people --filter score>abc", 9, "needs a number, not 'abc'", ""),
        ("records list people --filter subscribed=perhaps", 9, "needs true or false, not 'perhaps'", ""),
        ("records list people --filter company=Acme", 2, "none is named 'Acme'", "--filter 'company.name~Acme'"),
        ("records list people --filter company=acme.com", 2, "none is named 'acme.com'", "--filter 'company.domain=acme.com'"),
        ("records get people \udcff", 2, "text in UTF-8 is expected", ""),
        ("records create people --set notes=\udcff", 2, "text in UTF-8 is expected", ""),
        ("activities create --title \udcff", 2, "text in UTF-8 is expected", ""),
        ("records create people --data @\udcff", 2, "cannot read", ""),
        ("records create people --data @", 2, "--data @ names no file", "--data - reads stdin"),
        ("records list people --fields ,", 2, "--fields ',' names no field", "--fields id,name"),
        ("records list people --limit 1_0", 2, "a number of digits is expected, not '1_0'", ""),
        ("records list people --timeout 1_0", 2, "must be a number of seconds above 0, not '1_0'", ""),
        ("records create people --data [1]", 2, "must be a JSON object, not array", ""),
        ("records create people --data null", 2, "must be a JSON object, not null", ""),
        ("records list people --order down", 2, "--order must be asc or desc, not 'down'", ""),
        ("records count people --by status -o ids", 2, "groups have no ids", "-o csv"),
        ("records count people -o ids", 2, "a count has no ids", "-q count"),
        ("webhooks events -o ids", 2, "these rows have no ids", "-q '[].name' prints another field"),
        ("mirror sync people -o ids", 2, "these rows have no ids", "-q '[].object' prints another field"),
        ("workflows run x -o ids", 2, "the answer names no run", "--wait shows the run"),
        ("records get people Ada", 3, "there is no record 'Ada' of people", "crmctl records search people Ada"),
        ("records update people Ada --set score=1", 3, "there is no record 'Ada' of people", "attr=value"),
        ("records delete people Ada --yes", 3, "there is no record 'Ada' of people", "attr=value"),
        (f"records get people {ID}", 3, "record", ""),
        ("records edit people email=ada@acme.com", 2, "no editor is set", "EDITOR=nano"),
        ("activities get call", 3, "there is no activity 'call'", "crmctl activities list"),
        ("activities update call --title x", 3, "there is no activity 'call'", "crmctl activities list"),
        ("activities delete call --yes", 3, "there is no activity 'call'", "crmctl activities list"),
        ("api objects/people/records", 3, "", "{people} stands for it"),
        ("webhooks replay call", 3, "there is no delivery 'call'", "crmctl webhooks portal"),
        ("attributes create people --name X --type txt", 9, "type must be one of", "did you mean text?"),
        ("bulk export people -O none/people.csv", 2, "cannot write none/people.csv: there is no directory", ""),
        ("bulk import people a.csv --ref compny=companies.domain", 2, "compny is not a reference", "did you mean company?"),
        ("bulk import people a.csv --mode insert", 2, "--mode must be create, upsert or update, not 'insert'", ""),
        ("bulk import people a.csv --list-separator=", 2, "--list-separator needs a character", ""),
        ("demo fast", 2, "unexpected argument: fast", "crmctl demo --help"),
    ],
)
def test_an_error_names_the_mistake_and_the_way_out(words: str, code: int, message: str, hint: str) -> None:
    Path("a.csv").write_text("name,email\nAda,ada@acme.com\n", encoding="utf-8")
    error = run_here(*words.split()).exits(code).error()
    assert message in error["message"]
    assert hint in (error["hint"] or "")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("bulk import people ''", "FILE"),
        ("bulk import people a.csv --failed ''", "--failed"),
        ("bulk delete people --ids ''", "--ids"),
        ("bulk export people -O ''", "--out"),
        ("files upload a.csv '' --bucket b", "PATH"),
        ("org pull ''", "DIR"),
        ("check ''", "DIR"),
        ("webhooks verify '' --secret s --id i --timestamp 1 --signature x", "BODYFILE"),
        ("records list people --fields ''", "--fields"),
        ("--profile '' records list people", "--profile"),
        ("records list people --query ''", "--query"),
    ],
)
def test_an_empty_value_is_no_name(words: str, name: str) -> None:
    error = run_here(*shlex.split(words)).exits(2).error()
    assert (error["message"], error["hint"]) == (f"{name} is empty", "is a variable of the shell not set?")


def test_an_inspection_explains_unreadable_rows() -> None:
    Path("odd.csv").write_text("name,email\nAda,ada@acme.com,1815\n", encoding="utf-8")
    assert "warning: line 2: " in run_here("bulk", "inspect", "odd.csv", "-o", "table").ok().err


@pytest.mark.parametrize("depth", [300, 900, 960, 5000])
def test_json_nested_too_deeply_is_a_finding_of_its_row(depth: int) -> None:
    record = f'{{"email":"deep@acme.com","tags":{"[" * depth}{"]" * depth}}}'
    Path("deep.jsonl").write_text(f"{record}\n", encoding="utf-8")
    [finding] = run_here("bulk", "import", "people", "deep.jsonl").exits(9).error()["details"]["findings"]
    assert (finding["line"], finding["message"]) == (1, "arrays or objects are nested too deeply")
    Path("deep.json").write_text(f"[{record}]\n", encoding="utf-8")
    assert "nested too deeply (line 1" in run_here("bulk", "import", "people", "deep.json").exits(9).error()["message"]
