"""Normal forms, rules, blocks and groups: which records count as duplicates."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import pytest

from crmctl.dedupe import candidates
from crmctl.dedupe.candidates import MatchCandidates
from crmctl.dedupe.merge_plan import GroupCounts, MatchGroup, find_groups
from crmctl.dedupe.rules import FORMS, parse_rules, usual_form
from crmctl.errors import UsageError
from crmctl.models.resources import Attribute

TYPES = {
    "email": "email", "name": "name", "company": "text", "phone": "phone_number", "city": "text", "born": "date", "address": "address",
    "website": "text", "score": "number",
}  # fmt: skip
ATTRIBUTES = [Attribute(id=slug, slug=slug, type=kind) for slug, kind in TYPES.items()]

SAME = [
    ("email", " Ada@Example.COM", "ada@example.com"),
    ("email", "Ada Lovelace <ada@example.com>", "mailto:ADA@example.com"),
    ("mailbox", "a.da+news@googlemail.com", "ada@gmail.com"),
    ("phone", "+44 20 7946 0958", "020 79460958 ext. 12"),
    ("phone", {"countryCode": "GB", "number": "(020) 7946-0958"}, "00442079460958"),
    ("name", "LOVELACE, Ada", {"last": "Lovelace", "first": "Ada"}),
    ("name", "Dr. José Núñez", "jose nunez"),
    ("company", "The Müller & Söhne GmbH", "muller and sohne"),
    ("company", "ACME, Inc.", "Acme Corporation"),
    ("address", {"city": "London", "street": "12 High Street"}, "12 High St., London"),
    ("address", "Hauptstraße 5", "Hauptstr. 5 ".replace("str.", " Str.")),
    ("domain", "https://www.Acme.com/about?x=1", "info@acme.com"),
    ("date", "1990-02-01T00:00:00Z", "1990-02-01"),
    ("number", "1.50", 1.5),
    ("id", {"id": "ABC"}, "abc"),
    ("email", "ada@bücher.de", "Ada@XN--BCHER-KVA.de"),
    ("email", "ada@x.com, bob@y.com", "\u200bada@x.com;"),
    ("phone", "+49 30 123456", "030/123456"),
    ("phone", "+45 12 34 56 78", "12345678"),
    ("phone", "+44 (0)20 7946 0958", "020 7946 0958 #12"),
    ("phone", "٠٢٠٧٩٤٦٠٩٥٨", "020 7946 0958 / 020 7946 0959"),
    ("phone", "+1 (202) 555-0143", "1-202-555-0143"),
    ("name", "Beethoven, Ludwig van", "Ludwig van Beethoven"),
    ("name", "山田 太郎", "山田太郎"),
    ("name", "Jean-Luc O’Brien", "OBRIEN, Jean Luc"),
    ("company", "Acme Sp. z o.o.", "ACME sp z oo"),
    ("company", "Acme GmbH & Co. KG", "Acme A/S"),
    ("company", "Acme S. A. R. L.", "Acme UG (haftungsbeschränkt)"),
    ("company", "株式会社トヨタ", "トヨタ株式会社"),
    ("company", "ООО Ромашка", "Ромашка"),
    ("address", "221B Baker Street #4", "221 b Baker St Apt 4"),
    ("domain", "https://user:pw@www2.bücher.de:8080/#top", "XN--BCHER-KVA.de."),
    ("domain", "Ada <ada@acme.com>", "//acme.com"),
]
DIFFERENT = [
    ("email", "a.da@gmail.com", "ada@gmail.com"),
    ("mailbox", "a.da@example.com", "ada@example.com"),
    ("phone", "+44 20 7946 0958", "+44 20 7946 0959"),
    ("name", "Ada Lovelace", "Ada King"),
    ("company", "Holding", "Group"),
    ("exact", "a b", "a  b"),
    ("name", "John Smith Jr.", "John Smith"),
    ("name", "バラ", "ハラ"),
    ("name", "हिन्दी", "हिन्दा"),
    ("domain", "shop.acme.com", "acme.com"),
    ("phone", "030 123456", "030 123457"),
]


@pytest.mark.parametrize(("form", "one", "other"), SAME)
def test_spellings_of_one_value_have_one_form(form: str, one: Any, other: Any) -> None:
    assert FORMS[form].read(one) == FORMS[form].read(other) is not None


@pytest.mark.parametrize(("form", "one", "other"), DIFFERENT)
def test_different_values_stay_different(form: str, one: Any, other: Any) -> None:
    assert FORMS[form].read(one) != FORMS[form].read(other)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blank", [None, "", "  ", {}, [], {"first": "", "number": None}])
def test_a_blank_value_has_no_form(form: str, blank: Any) -> None:
    assert FORMS[form].read(blank) is None


@pytest.mark.parametrize(
    ("form", "text"), [("email", "n/a"), ("email", "-"), ("phone", "0000000"), ("phone", "911"), ("domain", "n/a"), ("domain", "none")]
)
def test_placeholders_match_nothing(form: str, text: str) -> None:
    assert FORMS[form].read(text) is None


def test_attributes_are_read_by_type_and_by_the_words_of_their_slug() -> None:
    def form(slug: str, kind: str = "text", of: str = "people") -> str:
        return usual_form(Attribute(id="1", slug=slug, type=kind), of).name

    assert (form("name", "name"), form("name"), form("name", of="companies")) == ("name", "name", "company")
    assert (form("work_email"), form("mobile-phone"), form("website"), form("company_name"), form("notes")) == (
        "email", "phone", "domain", "company", "text",
    )  # fmt: skip


def rules(*texts: str) -> Any:
    return parse_rules(texts, ATTRIBUTES, "people")


def test_rules_are_described_with_their_normal_forms() -> None:
    (rule,) = rules(" name~0.92 , company:text, city+website : exact ~ .8,address.city")
    assert rule.said == "name:name~0.92,company:text,city+website:exact~0.8,address.city:text"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no term"),
        ("name,", "no term"),
        ("nam", "no attribute nam"),
        ("name.", "no attribute"),
        ("name:nick", "no form nick"),
        *((f"name~{least}", "no similarity") for least in ("2", "0.1", "", "x", "1")),
    ],
)
def test_a_rule_that_means_nothing_is_refused_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        rules(text)
    assert caught.value.hint


def groups(records: list[dict[str, Any]], *texts: str, most: int = 10) -> tuple[list[MatchGroup], GroupCounts, MatchCandidates]:
    counts = GroupCounts()
    with MatchCandidates(rules(*texts), most) as filled:
        for number, record in enumerate(records):
            filled.add(str(number), record, number)
        filled.compare()
        return list(find_groups(filled, counts, most)), counts, filled


def members(records: list[dict[str, Any]], *texts: str) -> list[tuple[int, ...]]:
    return [group.members for group in groups(records, *texts)[0]]


ADAS = [
    {"email": "ada@x.com", "name": {"first": "Ada", "last": "Lovelace"}, "company": "Acme Inc."},
    {"email": "ADA@x.com ", "name": "A. L."},
    {"email": "", "name": "Lovelase, Ada", "company": "ACME"},
    {"email": "", "name": "Lovelace, Ada", "company": "Beta"},
    {"email": None, "name": "Bob", "company": "acme"},
]


def test_all_terms_of_a_rule_hold_and_rules_are_alternatives() -> None:
    assert members(ADAS, "email") == [(0, 1)]
    assert members(ADAS, "name~0.92,company") == [(0, 2)]
    assert members(ADAS, "name") == [(0, 3)]
    found, _, _ = groups(ADAS, "email", "name~0.92,company")
    assert [group.members for group in found] == [(0, 1, 2)]
    assert sorted((pair.a, pair.b, pair.rule) for pair in found[0].pairs) == [(0, 1, 0), (0, 2, 1)]
    assert 0.7 < found[0].score < 0.92, "two of three pairs match: less certain than each of them"


def test_empty_values_are_never_alike() -> None:
    assert members([{"email": ""}, {"email": None}, {}, {"email": " "}], "email", "name~0.9") == []


def test_a_chain_of_likenesses_is_cut() -> None:
    """Each record resembles the next: the first and the last have nothing in common."""
    chain = [{"city": "b" * number + "a" * (10 - number)} for number in range(5)]
    found, counts, _ = groups(chain, "city:exact~0.9")
    assert counts.cut > 0
    assert all(len(group.members) < len(chain) for group in found)
    linked = {(pair.a, pair.b) for group in found for pair in group.pairs}
    for group in found:
        pairs = list(combinations(group.members, 2))
        assert 2 * sum(pair in linked for pair in pairs) >= len(pairs)


def test_a_value_that_very_many_share_says_nothing() -> None:
    crowd = [{"phone": "+44 20 7946 0000", "email": f"p{number % 30}@x.com"} for number in range(60)]
    found, _, seen = groups(crowd, "phone", "email")
    assert seen.crowded == 1
    assert [len(group.members) for group in found] == [2] * 30


def test_a_group_with_too_many_members_is_left_out_and_counted() -> None:
    alike = [{"name": "Ada Lovelace", "company": "Acme"} for _ in range(12)]
    found, counts, _ = groups(alike, "name~0.9,company")
    assert (found, counts.too_large) == ([], 1)
    assert len(groups(alike, "name~0.9,company", most=12)[0]) == 1


def test_a_large_block_is_not_compared_pair_by_pair() -> None:
    many = [{"name": f"{hashlib.sha1(str(number).encode()).hexdigest()}", "city": "London"} for number in range(1500)]
    many.append({"name": many[700]["name"] + "x", "city": "london"})
    found, _, seen = groups(many, "city,name~0.95")
    assert [group.members for group in found] == [(700, 1500)]
    assert seen.compared <= len(many) * candidates.NEAR


def test_typing_errors_leave_a_block_in_common() -> None:
    for one, other in [("ada lovelace", "ada lovelcae"), ("jonathan smith", "johnathan smith"), ("maria garcia", "mria garcia")]:
        assert set(candidates.word_keys(one)) & set(candidates.word_keys(other)), (one, other)
    assert members([{"born": "1990-02-01", "name": "x"}, {"born": "1990-02-07", "name": "y"}], "born~0.8") == [(0, 1)]
    assert members([{"name": "Ada Lovelace", "city": "Londn"}, {"name": "Ada Lovelacs", "city": "London"}], "name~0.9,city~0.8") == [(0, 1)]


def test_many_orders_of_the_records_give_the_same_groups() -> None:
    forwards = {frozenset(group) for group in members(ADAS, "email", "name~0.9,company")}
    backwards = {frozenset(len(ADAS) - 1 - one for one in group) for group in members(ADAS[::-1], "email", "name~0.9,company")}
    assert forwards == backwards


def test_spilled_records_give_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{"name": f"Name{number % 150} Common", "email": f"p{number % 170}@x.com", "city": "x"} for number in range(200)]
    texts = ("email", "name~0.95,city~0.9", "city,name~0.97")
    inside, _, one = groups(many, *texts)
    for name, least in (("HELD", 20), ("HELD_KEYS", 50), ("AT_ONCE", 10)):
        monkeypatch.setattr(candidates, name, least)
    outside, _, other = groups(many, *texts)
    assert [(group.members, group.score) for group in outside] == [(group.members, group.score) for group in inside] != []
    assert other.windowed == one.windowed > 0


def test_a_huge_block_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "HUGE", 50)
    many = [{"name": f"{number:03} zz", "city": "x"} for number in range(120)] + [{"name": "119 zz", "city": "x"}]
    found, _, seen = groups(many, "city,name~0.99")
    assert [group.members for group in found] == [(119, 120)]
    assert seen.compared > 0


@pytest.mark.parametrize("texts", [("name~0.9", "name~0.9,city~0.9"), ("name~0.9,city~0.9", "name~0.9")])
def test_rules_that_look_at_one_value_do_not_share_its_blocks(texts: tuple[str, str]) -> None:
    """A single value is compared in finer blocks than two values together, whichever rule comes first."""
    pair = [{"name": "Grace Hopper", "city": "London"}, {"name": "Grace Wopper", "city": "London"}]
    alone = members(pair, "name~0.9,city~0.9")
    assert alone == [(0, 1)]
    assert members(pair, *texts) == alone
