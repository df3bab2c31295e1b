"""`crmctl check`: every kind on every attribute type, one error for each mistake, reports, trend, and failing records."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from crmctl.values.attribute_types import TYPES
from tests.support.cli import CRMCTL, Result, environment
from tests.support.fakecrm import Answer, FakeCrm, FakeRequest
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE, wait_until
from tests.support.service import RunningService, running_service

GOOD: dict[str, Any] = {
    "text": "plain", "email": "ada@acme.com", "number": 12.0, "phone_number": "+442079460000", "checkbox": True,
    "name": {"first": "Ada", "last": "Lovelace"}, "address": {"city": "London"}, "currency": {"amount": 5, "currency": "EUR"},
    "date": "2020-05-01", "select": "new", "list": ["a", "b"],
}  # fmt: skip
"""A valid value of each type; the test makes a reference."""

OTHER: dict[str, Any] = {
    "text": "other", "email": "grace@acme.com", "number": 13, "phone_number": "+442079460001", "checkbox": False,
    "name": {"first": "Grace", "last": "Hopper"}, "address": {"city": "Rome"}, "currency": {"amount": 6, "currency": "EUR"},
    "date": "2021-05-01", "select": "old", "list": ["c"],
}  # fmt: skip

SEEN: dict[str, tuple[str, Any]] = {
    "text": ("plain", "plain"), "email": ("ada@.*", "ada@acme.com"), "number": ("12", 12),
    "phone_number": (r".*0000.*", "+442079460000"), "checkbox": ("true", True), "name": ("Ada Lovelace", "Ada Lovelace"),
    "address": ("London", "London"), "currency": ("5 EUR", "5 EUR"), "date": ("2020-.*", "2020-05-01"), "select": ("new", "new"),
    "list": ("[ab]", "a"), "reference": ("[0-9a-f-]{36}", None),
}  # fmt: skip
"""A pattern that only the valid value matches, and the valid value as text."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("checks") / "service") as running:
        yield running


@pytest.fixture(autouse=True)
def _profile(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)


def write(text: str, name: str = "all.yaml") -> None:
    Path("checks").mkdir(exist_ok=True)
    Path("checks", name).write_text(f"checks:\n{text}", encoding="utf-8")


def check(*options: str) -> Result:
    return run_here("check", *options, "-o", "json")


def make(service: RunningService, slug: str, attributes: list[dict[str, Any]]) -> tuple[str, Any]:
    made = service.client.post("/api/v1/objects", json={"singularName": slug, "pluralName": slug, "slug": slug}).json()
    for attribute in attributes:
        answer = service.client.post(f"/api/v1/objects/{made['id']}/attributes", json={"name": attribute["slug"], **attribute})
        assert answer.status_code == 201, answer.text

    def create(data: dict[str, Any]) -> str:
        answer = service.client.post(f"/api/v1/objects/{made['id']}/records", json={"data": data})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    return made["id"], create


def test_every_attribute_type_in_every_kind(service: RunningService) -> None:
    companies = service.object_id("companies")
    acme, rome = (
        service.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": name}}).json()["id"] for name in ("Acme", "Rome")
    )
    good, other = GOOD | {"reference": acme}, OTHER | {"reference": rome}
    assert set(good) == set(other) == set(SEEN) == set(TYPES)
    configs = {"select": {"options": ["new", "old"]}, "reference": {"allowed_object_id": companies}}
    attributes = [{"slug": f"a_{kind}", "type": kind, **({"config": configs[kind]} if kind in configs else {})} for kind in TYPES]
    _, create = make(service, "things", attributes)
    first, second, third = (create({f"a_{kind}": value for kind, value in data.items()}) for data in (good, other, good))
    empty = create({})
    lines, expected = "", {}
    for kind in TYPES:
        rules = {
            "empty": f"not_empty: [a_{kind}]",
            "unique": f"unique: [a_{kind}]",
            "matches": f"matches: {{attribute: a_{kind}, pattern: '{SEEN[kind][0] if kind != 'reference' else acme}'}}",
            "in": f"in: {{attribute: a_{kind}, values: ['{SEEN[kind][1] or acme}', 'b', true, 12.5]}}",
            "filter": f"filter: a_{kind} isEmpty",
        }
        ids = {"empty": {empty}, "unique": {first, third}, "matches": {second}, "in": {second}, "filter": {empty}}
        for rule, text in rules.items():
            lines += f"- {{name: {kind}-{rule}, object: things, {text}}}\n"
            expected[f"{kind}-{rule}"] = ids[rule]
    lines += "- {name: refs, object: things, references: [a_reference]}\n- {name: fresh, object: things, fresh: 1d}\n"
    lines += "- {name: both, object: things, unique: [a_address, a_name]}\n"
    lines += "- {name: sql, object: things, sql: \"SELECT id FROM things WHERE a_text = 'other'\"}\n"
    write(lines)
    run_here("mirror", "sync").ok()
    results = check("--no-sync").exits(11).json()
    expected |= {"refs": set(), "fresh": set(), "both": {first, third}, "sql": {second}}
    assert {each["name"]: set(each["ids"]) for each in results} == expected
    assert {each["status"] for each in results if not each["ids"]} == {"passed"}


def test_a_failing_check_its_files_its_trend_and_its_repair(service: RunningService) -> None:
    _, create = make(service, "members_of_club", [{"slug": "code", "type": "text"}, {"slug": "state", "type": "text"}])
    bad = [create({"code": "x"}), create({"code": "x"})]
    create({"code": "y", "state": "ok"})
    write(
        "- {name: unique-codes, object: members_of_club, unique: [code], owner: ops, message: Codes repeat}\n"
        "- {name: states, object: members_of_club, not_empty: [state], severity: warn}\n"
        "- {name: few, object: members_of_club, not_empty: [state], max: 2}\n"
    )
    reports = ("--report", "junit=checks.xml", "--report", "markdown=checks.md", "--report", "github=checks.txt")
    results = {each["name"]: each for each in check(*reports).exits(11).json()}
    assert [(results[name]["status"], results[name]["failing"]) for name in ("unique-codes", "states", "few")] == [
        ("failed", 2), ("warned", 2), ("passed", 2),
    ]  # fmt: skip
    assert results["unique-codes"]["message"] == "Codes repeat: 2 failing, for example code is shared"
    suite = ET.parse("checks.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall(".//failure"))) == ("3", "1", 1)
    assert "| unique\\-codes | members\\_of\\_club | failed | 2 | ops |" in Path("checks.md").read_text().replace("-", "\\-").replace(
        "\\\\-", "\\-"
    )
    lines = Path("checks.txt").read_text().splitlines()
    assert [line.split("::")[1] for line in lines] == [
        "error file=checks/all.yaml,line=2,title=unique-codes",
        "warning file=checks/all.yaml,line=3,title=states",
    ]
    failing = Path(results["unique-codes"]["file"])
    with failing.open(newline="") as file:
        assert {row["id"] for row in csv.DictReader(file)} == set(bad)
    run_here("bulk", "update", "members_of_club", "--ids", failing, "--set", "state=ok", "--yes").ok()
    assert check("--select", "states").ok().json()[0]["trend"] == [2, 0]
    for record_id in bad[:1]:
        run_here("records", "update", "members_of_club", record_id, "--set", "code=z").ok()
    passed = check().ok().json()
    assert [each["trend"] for each in passed] == [[2, 0], [2, 0, 0], [2, 0]]
    assert not failing.exists()
    out = run_here("check", "--report", "github=-", "--no-sync").ok().out
    assert out == ""


def test_odd_values_in_results_and_reports(service: RunningService) -> None:
    _, create = make(service, "odd", [{"slug": "code", "type": "text"}, {"slug": "price", "type": "currency"}])
    huge, markup = create({"code": "x" * 100_000}), create({"code": "a|b <c> \x02 \N{SNOWMAN}\n]]> %"})
    create({"price": {"currency": "EUR", "amount": 5.0}})
    write(
        "- {name: codes, object: odd, matches: &y {attribute: code, pattern: y}}\n"
        "- {name: 'codes | too', object: odd, matches: *y, severity: warn, message: 'a|b %, \N{SNOWMAN}'}\n"
        "- {name: prices, object: odd, in: {attribute: price, values: [5 EUR]}}\n"
        "- {name: none, object: odd, sql: SELECT 1 WHERE 0}\n"
    )
    first, second, *others = check("--report", "junit=a.xml", "--report", "markdown=a.md", "--report", "github=a.txt").exits(11).json()
    assert (first["ids"], second["ids"], [each["failing"] for each in others]) == ([huge, markup], [huge, markup], [0, 0])
    assert len(first["message"]) < 200
    cases = ET.parse("a.xml").getroot().findall(".//testcase")
    assert [(case.get("name"), case.get("line"), len(case)) for case in cases] == [
        ("codes", "2", 1), ("codes | too", "3", 1), ("prices", "4", 0), ("none", "5", 0),
    ]  # fmt: skip
    rows = [line for line in Path("a.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [7] * 5
    assert [line.split("::")[1] for line in Path("a.txt").read_text().splitlines()] == [
        "error file=checks/all.yaml,line=2,title=codes",
        "warning file=checks/all.yaml,line=3,title=codes | too",
    ]
    with Path(first["file"]).open(newline="") as file:
        assert {row["id"]: len(row["problem"]) < 200 for row in csv.DictReader(file)} == {huge: True, markup: True}


def test_composites_are_read_in_the_order_people_write_them(service: RunningService) -> None:
    _, create = make(service, "spelled", [{"slug": "person", "type": "name"}])
    ids = [create({"person": name}) for name in ({"first": "Ada", "last": "L"}, {"last": "X", "first": "ADA"}, {"first": "Bo"})]
    write(
        "- {name: order, object: spelled, matches: {attribute: person, pattern: 'Ada L|ADA X|Bo'}}\n"
        "- {name: last, object: spelled, filter: person.last isEmpty}\n"
    )
    assert [each["ids"] for each in check().exits(11).json()] == [[], ids[2:]]


def test_references_to_missing_records_fail_and_newer_ones_wait(service: RunningService) -> None:
    companies = service.object_id("companies")
    company = {"type": "reference", "config": {"allowed_object_id": companies}}
    _, create = make(service, "employed", [{"slug": "company", **company}])

    def found(name: str) -> str:
        return str(service.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": name}}).json()["id"])

    gone = found("Gone")
    dangling = create({"company": gone})
    create({})
    service.client.delete(f"/api/v1/objects/{companies}/records/{gone}").raise_for_status()
    made = run_here("records", "get", "employed", dangling, "-q", "updatedAt", "-o", "ids").ok().out[:19]
    # The moment of a sync has the precision of a second.
    wait_until(lambda: run_here("mirror", "sync", "companies", "-q", "[0].asOf", "-o", "ids").ok().out[:19] > made)
    create({"company": found("New")})
    run_here("mirror", "sync", "employed").ok()
    write("- {name: a, object: employed, references: [company]}\n")
    assert check("--no-sync").exits(11).json()[0]["ids"] == [dangling]
    assert check().exits(11).json()[0]["ids"] == [dangling]


def test_conditions_on_referenced_records_read_the_mirror_only(service: RunningService) -> None:
    companies = service.object_id("companies")
    company = {"slug": "company", "type": "reference", "config": {"allowed_object_id": companies}}
    _, create = make(service, "staff", [company])
    body = {"data": {"name": "Initech", "domain": "initech.com"}}
    initech = service.client.post(f"/api/v1/objects/{companies}/records", json=body).json()["id"]
    theirs = create({"company": initech})
    create({})
    run_here("mirror", "sync", "staff").ok()
    write("- {name: a, object: staff, filter: company.domain=initech.com}\n- {name: b, object: staff, filter: company=Initech}\n")
    assert check("--no-sync").exits(3).error()["hint"] == f"crmctl mirror sync {companies} adds it"
    run_here("mirror", "sync", "companies").ok()
    before = len(service.log)
    assert [each["ids"] for each in check("--no-sync").exits(11).json()] == [[theirs], [theirs]]
    assert len(service.log) == before


def test_a_pattern_takes_no_longer_than_a_text_is_long(service: RunningService) -> None:
    _, create = make(service, "endless", [{"slug": "code", "type": "text"}])
    record_id = create({"code": "a" * 1000})
    run_here("mirror", "sync", "endless").ok()
    write("- {name: a, object: endless, matches: {attribute: code, pattern: (a+)+b}}\n")
    assert check("--no-sync").exits(11).json()[0]["ids"] == [record_id]


@pytest.mark.parametrize("damage", ["[]", "{", '{"a": 1}', '{"a": ["x"]}'])
def test_a_damaged_trend_begins_anew(damage: str) -> None:
    write("- {name: a, sql: SELECT 1 WHERE 0}\n")
    check().ok()
    [runs] = Path(os.environ["CRMCTL_STATE_DIR"]).glob("checks/*/runs.json")
    runs.write_text(damage)
    assert check("--no-sync").ok().json()[0]["trend"] == [0]


BAD = {
    "- {name: a, object: people, not_emty: [email]}": "line 2: checks.a.not_emty is no key that belongs there",
    "- name: a\n  object: people\n  unique: [email]\n  sevrity: warn": "line 5: checks.a.sevrity is no key that belongs there",
    "- {name: a, object: people}": "line 2: checks.a needs exactly one of: not_empty, unique,",
    "- {name: a, object: people, unique: [email], fresh: 2d}": "line 2: checks.a needs exactly one of:",
    "- {object: people, unique: [email]}": "line 2: checks.0.name is missing",
    "- {name: a, unique: [email]}": "line 2: checks.a needs an object",
    "- {name: a, object: people, unique: email}": "line 2: checks.a.unique must be a list",
    "- {name: a, object: people, matches: {attribute: email, pattern: '('}}": "checks.a.matches.pattern must be a valid regular expression",
    "- {name: a, object: people, matches: {attribute: email, pattern: 'a)|(b'}}": "must be a valid regular expression: unopened group",
    "- {name: a, object: people, matches: {attribute: email, pattern: '(?=a)b'}}": "valid regular expression: look-around, including",
    "- {name: a, object: people, matches: {attribute: email, pattern: [a]}}": "checks.a.matches.pattern must be text",
    "- {name: a, object: people, matches: {attribute: email, pattern: }}": "checks.a.matches.pattern must be text",
    "- {name: a, object: people, matches: {attribute: email}}": "checks.a.matches.pattern is missing",
    "- {name: a, object: people, in: {attribute: email, values: []}}": "checks.a.in.values must not be empty",
    "- {name: a, object: people, fresh: soon}": "checks.a.fresh must be a duration such as 2d, 15m or 500ms, not 'soon'",
    "- {name: a, object: people, filter: []}": "checks.a.filter must not be empty",
    "- {name: a, sql: []}": "checks.a.sql must be text",
    "- {name: a, object: people, unique: [email], severity: fatal}": "checks.a.severity must be 'error' or 'warn'",
    "- {name: a, object: people, unique: [email], max: -1}": "checks.a.max must be greater than or equal to 0",
    "- {name: a, object: people, unique: [email], owner: [x]}": "checks.a.owner must be text",
    "- {name: a, sql: SELECT 1}\n- {name: a, sql: SELECT 2}": "line 3: the name 'a' is taken by checks/all.yaml, line 2",
    "- name: a\n  sql: SELECT 1\n- sql: SELECT 2\n  name: a": "line 5: the name 'a' is taken by checks/all.yaml, line 2",
    "- just text": "line 2: checks.0 must be an object",
    "- {name: a": "checks/all.yaml: ",
}


@pytest.mark.parametrize("text", BAD)
def test_a_mistake_in_a_file_names_its_line_and_sends_nothing(text: str, service: RunningService) -> None:
    write(f"{text}\n")
    before = len(service.log)
    refused = check().exits(2)
    assert BAD[text] in refused.error()["message"], refused.err
    assert (refused.out, len(service.log)) == ("", before)


@pytest.mark.parametrize(
    ("rule", "code", "said"),
    [
        ("object: people, unique: [emial]", 2, "line 2: people has no attribute 'emial'"),
        ("object: people, filter: name.frist isEmpty", 2, "line 2: name has no part 'frist'"),
        ("object: people, not_empty: [email.domain]", 2, "line 2: people has no attribute 'email.domain'"),
        ("object: people, unique: [phone]", 2, "line 2: people has no attribute 'phone'"),
        ("object: people, filter: phone isEmpty", 2, "line 2: unknown attribute 'phone' in a filter"),
        ("object: people, filter: score~5", 9, "line 2: the filter on 'score' with contains"),
        ("object: people, references: [email]", 2, "line 2: email is no reference"),
        ("object: people, filter: emial=x", 2, "line 2: "),
        ("object: people, filter: status=cutsomer", 2, "line 2: 'cutsomer' is no option of status ("),
        ("sql: SELECT x FROM nowhere", 2, "line 2: SQL: no such table: nowhere"),
        ("sql: DELETE FROM people", 2, "line 2: only SELECT is answered"),
        ("object: peple, unique: [email]", 3, "line 2: peple is not in the mirror"),
        ("\n object: peple,\n unique: [email]", 3, "line 3: peple is not in the mirror"),
        ("object: peple, sql: SELECT id FROM people", 3, "line 2: peple is not in the mirror"),
        ("object: ../../../people, sql: SELECT id FROM people", 3, "line 2: ../../../people is not in the mirror"),
    ],
)
def test_a_check_of_data_missing_from_the_mirror_is_named(rule: str, code: int, said: str) -> None:
    run_here("mirror", "sync", "people", "companies", "--exclude", "people.phone").ok()
    write(f"- {{name: a, {rule}}}\n")
    refused = check("--no-sync").exits(code)
    assert said in refused.error()["message"], refused.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("absent",), "there is no folder absent with checks"),
        (("--select", "b"), "there is no check 'b'"),
        (("--report", "junit"), "--report 'junit' is not KIND=FILE"),
        (("--report", "junt=x"), "--report must be github, junit or markdown, not 'junt'"),
        (("--report", "junit=absent/x"), "cannot write absent/x: there is no directory"),
        (("--report", "junit=checks"), "cannot write checks: it is a directory"),
        (("--ping", "nowhere"), "--ping 'nowhere' is no web address"),
    ],
)
def test_bad_options(options: tuple[str, ...], said: str, service: RunningService) -> None:
    write("- {name: a, sql: SELECT 1 WHERE 0}\n")
    before = len(service.log)
    assert said in check(*options).exits(2).error()["message"]
    assert len(service.log) == before


def test_without_a_mirror_no_sync_is_refused() -> None:
    write("- {name: a, sql: SELECT 1}\n")
    assert check("--no-sync").exits(3).error()["message"] == "there is no mirror of this service"


@pytest.mark.parametrize("option", [["--select", "a"], ["--report", "junit=checks.xml"]])
def test_suggest_runs_no_checks(option: list[str]) -> None:
    assert run_here("check", "--suggest", *option).exits(2).error()["message"] == "--suggest runs no checks"
    assert not Path("checks.xml").exists()


def suggest(*objects: str) -> None:
    """Write the checks proposed for these objects, without those of other tests."""
    run_here("mirror", "sync", *objects).ok()
    Path("checks").mkdir()
    Path("checks/all.yaml").write_text(run_here("check", "--suggest").ok().out)


def test_suggestions_hold(service: RunningService) -> None:
    _, create = make(
        service,
        "suggested",
        [
            {"slug": "code", "type": "text", "isRequired": True, "isUnique": True},
            {"slug": "email", "type": "email"},
            {"slug": "stage", "type": "select", "config": {"options": ["a", "b"]}},
            {"slug": "company", "type": "reference", "config": {"allowed_object_id": service.object_id("companies")}},
        ],
    )
    for number in range(20):
        create({"code": str(number), "email": f"p{number}@acme.com"})
    suggest("suggested", "companies")
    results = check("--no-sync").ok().json()
    names = {each["name"] for each in results if each["object"] == "suggested"}
    assert names == {
        "suggested-code-not-empty", "suggested-code-unique", "suggested-email-not-empty", "suggested-email-unique",
        "suggested-stage-in", "suggested-company-references",
    }  # fmt: skip


def test_suggested_names_differ(service: RunningService) -> None:
    for slug, attribute in (("alike", "by_code"), ("alike_by", "code")):
        make(service, slug, [{"slug": attribute, "type": "text", "isUnique": True}])
    suggest("alike", "alike_by")
    assert sum(each["name"].startswith("alike-by-code-unique") for each in check("--no-sync").ok().json()) == 2


@pytest.fixture
def monitor() -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/ping/1", paths
        server.shutdown()
        thread.join()


def test_a_monitor_learns_of_start_and_exit_code(monitor: tuple[str, list[str]]) -> None:
    url, paths = monitor
    write("- {name: a, sql: SELECT 1}\n")
    check("--ping", url).exits(11)
    run_here("mirror", "sync", "--ping", url).ok()
    run_here("org", "pull", "crm", "--ping", url).ok()
    run_here("org", "verify", "crm", "--ping", url).ok()
    Path("people.csv").write_text("email\nnobody\n")
    run_here("bulk", "import", "people", "people.csv", "--ping", f"{url}/").exits(9)
    words = [path.removeprefix("/ping/1/") for path in paths]
    assert words == ["start", "11", *["start", "0"] * 3, "start", "9"]
    paths.clear()
    check("absent", "--ping", url).exits(2)
    write("- {name: a}\n")
    check("--ping", url).exits(2)
    assert [path.removeprefix("/ping/1/") for path in paths] == ["start", "2"] * 2


def test_a_monitor_learns_that_sigterm_ended_a_command(monitor: tuple[str, list[str]]) -> None:
    url, paths = monitor
    ended = Event()

    def end(_: FakeRequest) -> Answer:
        process.send_signal(signal.SIGTERM)
        ended.wait(PATIENCE)
        return Answer(cut=True)

    with FakeCrm({"GET /objects": end}) as fake:
        process = subprocess.Popen([CRMCTL, "mirror", "sync", "--ping", url], env=environment(fake.env), stderr=subprocess.DEVNULL)
        assert process.wait(PATIENCE) == 130
        ended.set()
    assert paths == ["/ping/1/start", "/ping/1/130"]


def test_a_monitor_that_is_away_changes_nothing() -> None:
    write("- {name: a, sql: SELECT 1 WHERE 0}\n")
    done = run_here("check", "--ping", "http://127.0.0.1:9/x").ok()
    assert "the monitor did not get --ping start" in done.err


def test_scheduling_is_explained() -> None:
    page = run_here("help", "scheduling").ok().out
    assert all(word in page for word in ("systemd", "OnCalendar=", "cron", "GitHub", "GitLab", "CRMCTL_STATE_DIR"))
