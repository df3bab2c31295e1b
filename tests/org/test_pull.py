"""`crmctl org pull` and `org verify` through the installed program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crmctl.org.folder import RECORDS, split_lines
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.service import RunningService


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_second_pull_changes_no_byte_and_one_value_changes_one_line(furnished: RunningService) -> None:
    pulled = Path("crm")
    run_here("org", "pull", "crm").ok()
    before = content(pulled)
    again = run_here("org", "pull", "crm").ok().json()
    assert (again["changed"], content(pulled)) == (False, before)
    line = json.loads(before["records/people.jsonl"].splitlines()[0])
    path = f"/api/v1/objects/{furnished.object_id('people')}/records/{line['id']}"
    furnished.client.patch(path, json={"data": {"job_title": "Countess"}})
    assert run_here("org", "pull", "crm").ok().json()["changed"] is True
    after = content(pulled)
    assert {name for name in after if after[name] != before[name]} == {"records/people.jsonl", "MANIFEST.json"}
    old, new = (set(lines["records/people.jsonl"].splitlines()) for lines in (before, after))
    assert (len(new - old), len(old - new)) == (1, 1)
    run_here("org", "verify", "crm").ok()
    assert sorted(path.name for path in Path().iterdir() if "crm" in path.name) == ["crm"], "nothing is left beside the folder"


def test_coverage_names_missing_parts(crm: RunningService, pulled: Path) -> None:
    manifest = json.loads((pulled / "MANIFEST.json").read_text())
    rows = {row["content"]: row for row in manifest["coverage"]}
    assert rows["people"]["count"] == 12
    assert not rows["history"]["contained"]
    assert rows["history"]["note"]
    assert crm.base_url.partition("://")[2].encode() not in b"".join(content(pulled).values()), "the folder names no host"
    keys = (pulled / "org.toml").read_text()
    assert '"people" = "email"' in keys


def test_a_reference_to_a_deleted_record_is_left_out(crm: RunningService) -> None:
    made = crm.client.post(f"/api/v1/objects/{crm.object_id('companies')}/records", json={"data": {"name": "Acme"}}).json()["id"]
    crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": "a@acme.com", "company": made}})
    link = {"objectId": crm.object_id("companies"), "recordId": made}
    crm.client.post("/api/v1/activities", json={"title": "Call", "summary": "", "linkedRecords": [link], "participants": []})
    crm.client.delete(f"/api/v1/objects/{crm.object_id('companies')}/records/{made}")
    report = run_here("org", "pull", "crm").ok().json()
    assert {"content": "people: references to deleted records", "contained": False, "count": None, "note": "1 left out"} in report[
        "coverage"
    ]
    assert "company" not in json.loads(Path("crm/records/people.jsonl").read_text())["data"]
    assert "links" not in json.loads(Path("crm/activities.jsonl").read_text())
    run_here("org", "verify", "crm").ok()


def test_chosen_objects_and_parts(crm: RunningService) -> None:
    furnish(crm, 2)
    report = run_here("org", "pull", "crm", "--objects", "people", "--with", "").ok().json()
    assert set(report["records"]) == {"people"}
    assert {path.name for path in Path("crm").iterdir()} == {"org.toml", "schema.yaml", "records", "MANIFEST.json"}
    notes = {row["content"]: row["note"] for row in report["coverage"]}
    assert "the records they name are not" in notes["people.company"]
    assert run_here("org", "pull", "crm").ok().json()["changed"] is False, "org.toml remembers the choice"
    run_here("org", "verify", "crm").ok()


def test_a_folder_under_version_control_is_a_valid_start(crm: RunningService) -> None:
    Path("crm/.git").mkdir(parents=True)
    Path("crm/.git/HEAD").write_text("x")
    Path("crm/org.toml").write_text('format = 1\nobjects = ["companies"]\nwith = []\n')
    run_here("org", "pull", "crm").ok()
    assert Path("crm/.git/HEAD").read_text() == "x"
    assert Path("crm/records/companies.jsonl").exists()
    assert "companies" in Path("crm/org.toml").read_text()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("notes.txt", "x", "not crmctl's"),
        ("org.toml", "format = 2\n", "format 2"),
        ("org.toml", "format = 1\nobject = []\n", "object is no key"),
        ("org.toml", "format = 1\nobjects = [3]\n", "objects.0 must be text"),
        ("org.toml", "format = \n", "org.toml"),
    ],
)
def test_a_foreign_folder_is_refused_before_the_first_request(crm: RunningService, name: str, text: str, said: str) -> None:
    Path("crm").mkdir()
    Path("crm", name).write_text(text)
    crm.log.clear()
    assert said in run_here("org", "pull", "crm").exits(2).error()["message"]
    assert (crm.log, content(Path("crm"))) == ([], {name: text.encode()})


def test_a_pull_into_a_file_or_nowhere_is_refused(crm: RunningService) -> None:
    Path("file").write_text("x")
    run_here("org", "pull", "file").exits(2)
    run_here("org", "pull", "no/where").exits(2)
    run_here("org", "pull", "crm", "--objects", "peple").exits(3)
    run_here("org", "pull", "crm", "--with", "everything").exits(2)
    assert not Path("crm").exists()


def damage(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "place", "problem"),
    [
        ("records/people.jsonl", '{"id"', '{"id', "records/people.jsonl:1", "no JSON"),
        ("records/people.jsonl", '"data":{', '"data":{"nothing":1,', "records/people.jsonl:1", "no attribute nothing"),
        ("records/people.jsonl", '"data"', '"date"', "records/people.jsonl:1", "a record is"),
        ("schema.yaml", "type: text", "type: []", "schema.yaml", "must be text"),
        ("schema.yaml", "slug: people", "slug: ../people", "schema.yaml", "file name"),
        ("schema.yaml", "slug: deals", "slug: People", "schema.yaml", "where case does not count"),
        ("MANIFEST.json", '"people": 12', '"people": 13', "people", "the manifest says 13"),
        ("MANIFEST.json", '"schema.yaml"', '"../schema.yaml"', "MANIFEST.json", "leaves the folder"),
        ("MANIFEST.json", '"format": 1', '"format": 9', "", "format 9"),
        ("MANIFEST.json", '"records": {', '"others": {', "MANIFEST.json", "records is missing"),
        ("MANIFEST.json", '"people": 12', '"people": "many"', "MANIFEST.json", "records.people must be a whole number"),
        ("members.yaml", "- ", "x: ", "members.yaml", ""),
    ],
)
def test_verify_names_file_and_line(pulled: Path, name: str, old: str, new: str, place: str, problem: str) -> None:
    damage(pulled, name, old, new)
    done = run_here("org", "verify", "crm")
    if done.code == 11:
        assert any(place in row["place"] and problem in row["problem"] for row in done.json()), done.out
        assert name in {row["place"] for row in done.json()} or name == "MANIFEST.json", "the checksum tells too"
    else:
        assert (done.code, problem) == (2, "format 9"), done.err
        assert problem in done.error()["message"]
        assert place in done.error()["message"]


def test_line_ends_that_git_converted_are_named_as_the_cause(pulled: Path) -> None:
    for path in pulled.rglob("*.*"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    rows = run_here("org", "verify", "crm").exits(11).json()
    assert {"schema.yaml", "records/people.jsonl"} <= {row["place"] for row in rows}
    assert all("only its line ends" in row["problem"] for row in rows), rows


@pytest.mark.parametrize("name", ["MANIFEST.json", "schema.yaml", "records/people.jsonl"])
def test_a_folder_with_conflict_markers_is_damaged_and_pulled_anew(crm: RunningService, pulled: Path, name: str) -> None:
    assert crm
    before = content(pulled)
    text = before[name].decode()
    (pulled / name).write_text(f"<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> other\n", encoding="utf-8")
    assert name in run_here("org", "verify", "crm").exits(11).json()[0]["place"]
    assert run_here("org", "pull", "crm").ok().json()["changed"] is True
    run_here("org", "verify", "crm").ok()
    assert content(pulled)[name] == before[name] or name == "MANIFEST.json"
    (pulled / "schema.yaml").unlink()
    assert run_here("org", "verify", "crm").exits(11).json() == [{"place": "schema.yaml", "problem": "is missing"}]


def test_a_damaged_folder_that_may_be_masked_is_not_pulled_unmasked(crm: RunningService) -> None:
    assert crm
    run_here("org", "pull", "crm", "--mask").ok()
    manifest = Path("crm/MANIFEST.json")
    whole = manifest.read_text(encoding="utf-8")
    for text in (f"<<<<<<< HEAD\n{whole}", "{"):
        manifest.write_text(text, encoding="utf-8")
        assert run_here("org", "pull", "crm").exits(2).error()["code"] == "foreign_folder"
    run_here("org", "pull", "crm", "--mask").ok()


BAD_INPUT = [
    ("records/people.jsonl", lambda text: text[:-1], "records/people.jsonl:12: the last line is cut off"),
    ("records/people.jsonl", lambda text: text + text.split("\n", 1)[0] + "\n", "records/people.jsonl:13: the id "),
    ("records/people.jsonl", lambda text: text.replace('{"id"', '{"id', 1), "records/people.jsonl:1: is no JSON"),
    ("records/people.jsonl", lambda _: '{"id":"x","data":{"email":"\\ud800"}}\n', "records/people.jsonl:1: holds half a character"),
    ("records/people.jsonl", lambda _: '{"id":"x","data":{"company":"y"}}\n', "records/people.jsonl:1: company refers to companies y"),
    ("activities.jsonl", lambda _: '{"id":"x","links":["people/y"]}\n', "activities.jsonl:1: links refers to people y"),
    ("schema.yaml", lambda text: text.replace("type: text", "type: []", 1), "schema.yaml: objects."),
    ("schema.yaml", lambda text: text.replace("slug: deals", "slug: People", 1), "schema.yaml: People and people are the same name"),
    ("schema.yaml", lambda text: text.replace("slug: people", "slug: ../people", 1), "schema.yaml: "),
    ("MANIFEST.json", lambda text: text.replace('"format": 1', '"format": 9'), "crm has the format 9"),
    ("MANIFEST.json", lambda text: text.replace('"schema.yaml"', '"../schema.yaml"'), "MANIFEST.json: the path '../schema.yaml' leaves"),
    ("MANIFEST.json", None, "crm is no folder of crmctl org"),
    ("schema.yaml", None, "schema.yaml: is missing"),
    ("members.yaml", lambda text: text + text, "members.yaml:13: the id m1-0@example.com is also in members.yaml:1"),
    ("webhooks.yaml", lambda _: "- url: [\n", "webhooks.yaml: "),
    ("webhooks.yaml", lambda _: '- {url: "a\\ud800"}\n', " holds half a character"),
    ("reports/x.yaml", lambda _: "name: X\nobject: people\nfilters: 3\n", "reports/x.yaml:1: X has filters that are no list"),
    ("files.yaml", lambda _: "- {path: docs/a, sha256: ../../../etc/passwd}\n", "files.yaml:1: docs/a has no sha256"),
    ("files.yaml", lambda _: f"- {{path: docs/a, contentType: a/b, sha256: {'a' * 64}}}\n", "files.yaml:1: docs/a is missing: files/aaaa"),
    ("foreign.txt", lambda _: "x", "crm holds files that are not crmctl's: foreign.txt"),
]


def test_apply_refuses_bad_input_before_the_first_request(crm: RunningService, pulled: Path) -> None:
    for name, change, said in BAD_INPUT:
        path = pulled / name
        whole = path.read_text(encoding="utf-8") if path.exists() else None
        if change is None:
            path.unlink()
        else:
            path.write_text(change(whole or ""), encoding="utf-8")
        crm.log.clear()
        for command in (("org", "apply", "crm", "--edited"), ("org", "diff", "crm")):
            refused = run_here(*command)
            assert refused.code in (2, 9), (name, said, refused.out)
            assert said in refused.error()["message"], (name, refused.error())
        assert crm.log == [], name
        path.unlink(missing_ok=True)
        if whole is not None:
            path.write_text(whole, encoding="utf-8")


def test_verify_finds_double_ids_open_references_missing_and_further_files(pulled: Path) -> None:
    people = pulled / "records/people.jsonl"
    lines = [f"{line}\n" for line in people.read_text(encoding="utf-8").split("\n") if line]
    people.write_text("".join([*lines, lines[0]]), encoding="utf-8")
    companies = pulled / "records/companies.jsonl"
    gone = json.loads(companies.read_text(encoding="utf-8").splitlines()[0])["id"]
    companies.write_text("".join(companies.read_text(encoding="utf-8").splitlines(keepends=True)[1:]), encoding="utf-8")
    first = json.loads(lines[0])
    first["data"]["company"] = gone
    people.write_text(people.read_text(encoding="utf-8").replace(lines[1], json.dumps({"id": "x", "data": first["data"]}) + "\n"))
    (pulled / "activities.jsonl").unlink(missing_ok=True)
    (pulled / "records/more.jsonl").write_text("")
    rows = {(row["place"], row["problem"]) for row in run_here("org", "verify", "crm").exits(11).json()}
    assert ("records/people.jsonl:13", f"the id {first['id']} is also in records/people.jsonl:1") in rows
    assert ("records/people.jsonl:2", f"company refers to companies {gone}, which the folder does not hold") in rows
    assert ("records/more.jsonl", "is not in the manifest") in rows
    assert any(place == "records/people.jsonl" and "changed" in text for place, text in rows)


def test_a_cut_line_a_link_out_and_a_huge_file(pulled: Path) -> None:
    people = pulled / "records/people.jsonl"
    whole = people.read_bytes()
    people.write_bytes(whole[:-1])
    assert any("cut off" in row["problem"] for row in run_here("org", "verify", "crm").exits(11).json())
    with people.open("r+b") as file:
        file.truncate(len(whole) + (32 << 20))
        assert any("the line is longer than 16 MB" in row["problem"] for row in run_here("org", "verify", "crm").exits(11).json())
        file.truncate(2 << 30)
    assert "at most" in run_here("org", "verify", "crm").exits(11).json()[0]["problem"]
    people.unlink()
    Path("outside").write_bytes(whole)
    people.symlink_to(Path("outside").resolve())
    assert "leaves the folder" in run_here("org", "verify", "crm").exits(11).json()[0]["problem"]


def test_large_objects_are_split_by_the_end_of_the_id(tmp_path: Path) -> None:
    folder = tmp_path / RECORDS
    folder.mkdir()
    lines = [json.dumps({"id": f"{number:032x}", "data": {}}) + "\n" for number in range(64)]
    (folder / "people.jsonl").write_text("".join(lines))
    split_lines(folder / "people.jsonl", limit=1000)
    parts = sorted((folder / "people").iterdir())
    assert [part.stem for part in parts] == list("0123456789abcdef")
    assert sorted("".join(part.read_text() for part in parts).splitlines(keepends=True)) == sorted(lines)
    assert not (folder / "people.jsonl").exists()
