"""The survivor of a group and its values, and merge plans edited by people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crmctl.dedupe.merge_plan import (
    KeepRules,
    MergePlanFile,
    MergePlanHeader,
    MergeRecord,
    PlannedMerge,
    choose_survivor,
    fingerprint,
    merge_values,
    parse_keep,
    write_merge_plan,
)
from crmctl.errors import UsageError
from crmctl.models.resources import Attribute
from crmctl.plan.merge_records import list_groups

TYPES = {"email": "email", "name": "name", "phone": "phone_number", "tags": "list", "owner": "reference", "score": "number"}
ATTRIBUTES = [Attribute(id=slug, slug=slug, type=kind) for slug, kind in TYPES.items()]
OLD = MergeRecord(
    "old",
    {"email": "a@x.com", "phone": "1", "tags": ["a", "b"], "score": 0, "name": " "},
    "2020-01-01T00:00:00Z",
    "2024-01-01T00:00:00Z",
)
NEW = MergeRecord(
    "new",
    {"email": "b@x.com", "phone": "2", "tags": ["b", "c"], "name": "Ada", "owner": "old"},
    "2021-01-01T00:00:00Z",
    "2023-01-01T00:00:00Z",
    3,
)
MID = MergeRecord(
    "mid",
    {"email": "", "phone": "333", "tags": [], "name": "Ada Lovelace", "owner": "else"},
    "2020-06-01T00:00:00Z",
    "2025-01-01T00:00:00Z",
    1,
)
ALL = (OLD, NEW, MID)
HEADER = MergePlanHeader("people", "0b", "http://x", "1", "2026-01-01T00:00:00Z", ["email"], ["oldest"], None)


@pytest.mark.parametrize(("rule", "stays"), [("oldest", "old"), ("newest", "new"), ("most-complete", "new"), ("most-activities", "new")])
def test_the_choice_of_the_survivor(rule: str, stays: str) -> None:
    assert choose_survivor(ALL, rule).id == stays


def chosen(keep: KeepRules, survivor: str = "old") -> dict[str, Any]:
    return {slug: merged.value for slug, merged in merge_values(ALL, survivor, keep, ATTRIBUTES).items()}


def test_empty_values_never_win() -> None:
    found = chosen(KeepRules())
    assert found == {"email": "a@x.com", "name": "Ada Lovelace", "phone": "1", "tags": ["a", "b"], "owner": "else", "score": 0}
    assert chosen(KeepRules(), "mid")["email"] == "a@x.com", "of the others the one changed last that has one"


def test_the_choice_of_values() -> None:
    keep = parse_keep(["newest", "phone=longest, email=oldest", "tags=union,name=newest"], ATTRIBUTES)
    assert keep.survivor == "newest"
    found = chosen(keep, "new")
    assert (found["phone"], found["email"], found["name"]) == ("333", "a@x.com", "Ada Lovelace")
    assert found["tags"] == ["b", "c", "a"], "the survivor's first, each once"


def test_no_record_refers_to_itself_after_a_merge() -> None:
    values = merge_values((OLD, NEW), "old", KeepRules(), ATTRIBUTES)
    assert values["owner"].value is None


@pytest.mark.parametrize(
    "text", ["", "tallest", "phone=best", "fax=newest", "phone=union", "oldest,newest", "phone=", "=newest", "oldest=phone"]
)
def test_a_rule_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--keep"):
        parse_keep([text], ATTRIBUTES)


def merge(keep: KeepRules | None = None) -> PlannedMerge:
    return PlannedMerge(1, 0.9, (), "old", ("new", "mid"), merge_values(ALL, "old", keep or KeepRules(), ATTRIBUTES), ALL)


def edited(edit: Any, keep: KeepRules | None = None) -> PlannedMerge:
    path = Path("merge.plan")
    write_merge_plan(path, HEADER, [merge(keep)])
    head, line = path.read_text().splitlines()
    document = json.loads(line)
    edit(document)
    path.write_text(f"{head}\n\n{json.dumps(document)}\n")
    return next(MergePlanFile(path).merges(ATTRIBUTES))


def values(found: PlannedMerge) -> dict[str, Any]:
    return {slug: merged.value for slug, merged in found.values.items()}


def test_a_plan_is_read_as_it_was_written() -> None:
    found = edited(lambda document: None)
    assert (found.survivor, found.losers, values(found)) == ("old", ("new", "mid"), values(merge()))
    assert Path("merge.plan").stat().st_mode & 0o777 in (0o600, 0o644)


def test_another_survivor_is_all_a_person_has_to_write() -> None:
    found = edited(lambda document: document.update(survivor="new"))
    assert (found.survivor, set(found.losers)) == ("new", {"mid", "old"})
    assert (values(found)["email"], values(found)["phone"]) == ("b@x.com", "2"), "what follows the survivor follows the new one"
    both = edited(lambda document: document.update(survivor="new", losers=["old"]))
    assert (both.survivor, both.losers) == ("new", ("old",))
    left_out = edited(lambda document: document.update(survivor="new", losers=["new"]))
    assert (left_out.survivor, left_out.losers) == ("new", ("old",)), "who was left out before stays left out"
    loud = edited(lambda document: document.update(survivor="NEW"))
    assert (loud.survivor, set(loud.losers)) == ("new", {"mid", "old"})


def test_a_rule_of_its_own_does_not_follow_the_survivor() -> None:
    found = edited(lambda document: document.update(survivor="mid"), parse_keep(["phone=oldest"], ATTRIBUTES))
    assert (values(found)["phone"], values(found)["email"]) == ("1", "a@x.com")


def test_a_record_can_be_left_out_and_its_values_with_it() -> None:
    found = edited(lambda document: document.update(losers=["new"]))
    assert found.losers == ("new",)
    assert (values(found)["name"], values(found)["owner"]) == ("Ada", None)


def test_a_value_can_be_taken_from_another_record_or_typed() -> None:
    assert values(edited(lambda document: document["values"].update(phone={"from": "new"})))["phone"] == "2"
    typed = {"value": "+44", "from": None}
    assert values(edited(lambda document: document["values"].update(phone=typed)))["phone"] == "+44"
    by_hand = {"value": "2", "from": "new", "by": "survivor"}
    assert values(edited(lambda document: document["values"].update(phone=by_hand)))["phone"] == "2"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda document: document["values"]["phone"].update(value="9"), "phone is not what old holds"),
        (lambda document: document["values"].update(phone={}), "neither a value nor"),
        (lambda document: document["values"].update(fax={"value": 1}), "no attribute fax"),
        (lambda document: document["values"]["phone"].update({"from": "nobody"}), "no record of this group"),
        (lambda document: document.update(survivor="nobody"), "no record of this group"),
        (lambda document: document.update(losers=[]), "no record is left"),
        (lambda document: document["records"]["old"]["data"].update(phone="9"), "was edited"),
        (lambda document: document.pop("values"), "'values' is missing"),
        (lambda document: document.update(losers="new"), "losers is no list of ids"),
        (lambda document: document.update(losers=["new", "nobody"]), "nobody is no record of this group"),
        (lambda document: document.update(survivor=None), "survivor is no id"),
        (lambda document: document.update(group="1"), "no number of a group"),
        (lambda document: document.update(values=[]), "values is not what it was"),
        (lambda document: document.update(score="high"), "of another kind"),
    ],
)
def test_a_line_that_means_nothing_is_refused_by_its_number(edit: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        edited(edit)
    assert "merge.plan, line 3" in caught.value.message


def test_a_file_that_is_no_plan_or_was_cut_short() -> None:
    Path("x").write_text('{"kind": "else"}\n')
    with pytest.raises(UsageError, match="no merge plan"):
        MergePlanFile(Path("x"))
    write_merge_plan(Path("x"), HEADER, [merge()])
    Path("x").write_bytes(Path("x").read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"x, line 2: no JSON object .*column"):
        list(MergePlanFile(Path("x")).merges(ATTRIBUTES))
    Path("x").write_bytes(b"")
    with pytest.raises(UsageError, match="x is empty"):
        MergePlanFile(Path("x"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: b"\xef\xbb\xbf" + plan,
        lambda plan: plan.replace(b"\n", b"\r\n"),
        lambda plan: plan.replace(b"\n", b"\n\n") + b"\n",
        lambda plan: plan.rstrip(b"\n"),
    ],
)
def test_an_editors_changes_to_a_plans_layout_do_no_harm(spoil: Any) -> None:
    write_merge_plan(Path("x"), HEADER, [merge()])
    Path("x").write_bytes(spoil(Path("x").read_bytes()))
    (found,) = MergePlanFile(Path("x")).merges(ATTRIBUTES)
    assert (found.survivor, found.losers, values(found)) == ("old", ("new", "mid"), values(merge()))


def test_the_third_line_is_named_when_it_is_broken_or_not_text() -> None:
    write_merge_plan(Path("x"), HEADER, [merge()])
    whole = Path("x").read_bytes()
    for spoiled, said in ((b'{"group": 2,', "no JSON object"), (b'{"group": "\xe9"}', "not UTF-8"), (b"[1]", "no JSON object")):
        Path("x").write_bytes(whole + spoiled + b"\n")
        with pytest.raises(UsageError, match=f"x, line 3: .*{said}") as caught:
            list(MergePlanFile(Path("x")).merges(ATTRIBUTES))
        assert caught.value.hint


def test_a_record_or_a_number_that_comes_twice_is_named_with_both_lines() -> None:
    write_merge_plan(Path("x"), HEADER, [merge()])
    head, line = Path("x").read_text().splitlines()
    for group, said in ((1, "line 3: line 2 is group 1 too"), (2, r"line 3: record old is in group 1 \(line 2\) and in group 2")):
        Path("x").write_text("\n".join([head, line, json.dumps({**json.loads(line), "group": group})]))
        plan = MergePlanFile(Path("x"))
        with pytest.raises(UsageError, match=said):
            list_groups(plan, lambda: plan.merges(ATTRIBUTES))  # noqa: B023


def test_a_fingerprint_covers_the_values() -> None:
    assert fingerprint({"a": 1, "b": None, "c": " "}) == fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
