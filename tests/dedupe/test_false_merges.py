"""Different people with much in common: the rules of the guide keep them apart, and still find true duplicates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.dedupe_figures import FIELDS, RULES

from crmctl.dedupe.candidates import MatchCandidates
from crmctl.dedupe.merge_plan import GroupCounts, find_groups
from crmctl.dedupe.rules import FORMS, parse_rules, usual_form
from crmctl.models.resources import Attribute

GUIDE = (Path(__file__).parents[2] / "docs/guides/merge-duplicates.md").read_text()
CONTACT_RULES = ["email", "name~0.9,phone"]
CONTACTS = {"email": "email", "name": "name", "phone": "phone_number", "company": "text", "birthday": "date"}
PEOPLE = {**dict.fromkeys(FIELDS, "text"), "date_of_birth": "date"}
HOME = {"street_number": "12", "address_1": "high street", "suburb": "hampton park", "postcode": "3976"}


def merged(types: dict[str, str], rules: Sequence[str], *records: dict[str, Any]) -> bool:
    """Whether any two of these records would be merged."""
    attributes = [Attribute(id=slug, slug=slug, type=kind) for slug, kind in types.items()]
    with MatchCandidates(parse_rules(rules, attributes, "people"), 10) as filled:
        for number, record in enumerate(records):
            filled.add(str(number), record)
        filled.compare()
        return bool(list(find_groups(filled, GroupCounts(), 10)))


def test_these_are_the_rules_of_the_guide() -> None:
    first, last = GUIDE.split("## Rules that work")
    rules = [shlex.split(rule)[1] for rule in re.findall(r"^\| `(--match .*?)` \|", last, re.MULTILINE)]
    assert rules == RULES
    command = next(line for line in first.splitlines() if line.startswith("$ crmctl bulk dedupe people"))
    words = shlex.split(command)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--match"] == CONTACT_RULES


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "Ada King", "email": "info@acme.com"}, {"name": "Alan Turing", "email": "INFO@acme.com"}),
        ({"name": "Ada King", "email": "office@acme.com"}, {"name": "Alan Turing", "email": "Office <office@acme.com>"}),
        ({"name": "Ada King", "email": "acme@acme.com"}, {"name": "Alan Turing", "email": "acme@acme.com"}),
        ({"name": "Ada King", "email": "test@test.com"}, {"name": "Alan Turing", "email": "test@test.com"}),
        ({"name": "Ada King", "email": "n/a"}, {"name": "Alan Turing", "email": "n/a"}),
        ({"name": "Ada King", "phone": "000000"}, {"name": "Ada King", "phone": "000000"}),
        ({"name": "n/a", "phone": "+442079460958"}, {"name": "N/A", "phone": "+442079460958"}),
        ({"name": "Anna Schmidt", "phone": "030 1234567"}, {"name": "Peter Schmidt", "phone": "+49 30 1234567"}),
        ({"name": "Ben Adams", "phone": "030 1234567"}, {"name": "Bob Adams", "phone": "030 1234567"}),
        ({"name": "Tim Zimmermann", "phone": "030 1234567"}, {"name": "Tom Zimmermann", "phone": "030 1234567"}),
        ({"name": "John Smith", "phone": "030 1234567"}, {"name": "John Smith jr.", "phone": "030 1234567"}),
        (
            {"name": "John Smith", "phone": "+44 20 7946 0958", "company": "Acme", "email": "john@acme.com"},
            {"name": "John Smith", "phone": "+44 20 7946 1234", "company": "Initech", "email": "john@initech.com"},
        ),
    ],
)
def test_contacts_that_share_something_stay_two(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not merged(CONTACTS, CONTACT_RULES, one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "Grace Hoper", "phone": "+1 202 555 0143"}, {"name": "Hopper, Grace", "phone": "2025550143"}),
        ({"name": "A. Lovelace", "phone": "020 7946 0958"}, {"name": "Ada Lovelace", "phone": "020 7946 0958"}),
        ({"name": "Ada", "email": "ada@acme.com"}, {"name": "Lovelace", "email": "Ada@Acme.com"}),
    ],
)
def test_contacts_that_are_one_are_found(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert merged(CONTACTS, ["email", "name~0.8,phone"], one, other)


def test_same_names_of_two_companies_and_of_one() -> None:
    one, other = {"name": "John Smith", "company": "Acme Ltd"}, {"name": "John Smith", "company": "Initech Ltd"}
    assert not merged(CONTACTS, ["name~0.92,company"], one, other)
    assert merged(CONTACTS, ["name~0.92,company"], one, {**other, "company": "ACME"})


def test_a_term_with_a_question_mark_says_no_only_where_both_values_are_there() -> None:
    rule, shared = ["name~0.9,phone,birthday?"], {"name": "John Smith", "phone": "030 1234567"}
    assert not merged(CONTACTS, rule, {**shared, "birthday": "1955-04-12"}, {**shared, "birthday": "1980-09-17"})
    assert merged(CONTACTS, rule, {**shared, "birthday": "1955-04-12"}, {**shared, "birthday": None})
    assert merged(CONTACTS, rule, {**shared, "birthday": "1955-04-12"}, {**shared, "birthday": "1955-04-12"})
    assert merged(CONTACTS, rule, {**shared, "birthday": "1955-04-12"}, {**shared, "birthday": "1900-01-01"})


PERSON = {"given_name": "anna", "surname": "miller", "date_of_birth": "19800917", "soc_sec_id": "1234567", **HOME}


@pytest.mark.parametrize(
    "other",
    [
        {"given_name": "peter", "soc_sec_id": "8877661"},  # twins
        {"given_name": "tom", "soc_sec_id": "1234568"},  # twins with successive numbers
        {"given_name": "ben", "soc_sec_id": None},
        {"date_of_birth": "19550412", "soc_sec_id": "8877661"},  # mother and daughter with one name
        {"date_of_birth": "19550412", "soc_sec_id": None},
        {"given_name": "maria", "date_of_birth": "19550412", "soc_sec_id": "8877661"},
        {"street_number": "7", "address_1": "lake road", "suburb": "perth", "date_of_birth": "19550412", "soc_sec_id": "8877661"},
    ],
)
def test_people_of_one_house_or_of_one_name_stay_two(other: dict[str, Any]) -> None:
    assert not merged(PEOPLE, RULES, PERSON, {**PERSON, **other})


@pytest.mark.parametrize(
    "nothing", [("soc_sec_id", "n/a"), ("soc_sec_id", "000000"), ("soc_sec_id", "unknown"), ("date_of_birth", "1900-01-01")]
)
def test_placeholders_merge_no_people(nothing: tuple[str, str]) -> None:
    shared = dict([nothing])
    assert not merged(
        PEOPLE, RULES, {"given_name": "anna", "surname": "miller", **shared}, {"given_name": "anna", "surname": "mill", **shared}
    )


@pytest.mark.parametrize(
    "other",
    [
        {"surname": "schmidt", "soc_sec_id": None},  # married
        {"given_name": "miller", "surname": "anna", "soc_sec_id": None},
        {"soc_sec_id": "1234576", "given_name": "ana", "address_1": "high stret"},
        {"date_of_birth": None, "soc_sec_id": None},
        {"date_of_birth": "19800971", "soc_sec_id": None},
    ],
)
def test_one_person_with_mistakes_is_found(other: dict[str, Any]) -> None:
    assert merged(PEOPLE, RULES, PERSON, {**PERSON, **other})


def test_the_mailbox_of_a_company_tells_companies_and_not_people() -> None:
    email = Attribute(id="1", slug="email", type="email")
    assert usual_form(email, "companies").read("Info@Acme.com") == "info@acme.com"
    assert usual_form(email, "people").read("Info@Acme.com") is None
    assert FORMS["exact"].read("n/a") == "n/a"
    assert FORMS["name"].read({"last": "Null"}) == "null"
