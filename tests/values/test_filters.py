"""Conditions: three spellings in, two wire forms out, nothing lost."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.resources import Attribute
from crmctl.values.filters import Condition, check_slugs, format_condition, parse_clause, parse_condition
from crmctl.values.operators import SIGNS, VALUELESS, Operator

ENCODABLE = st.characters(codec="utf-8")
SLUGS = st.text(st.characters(codec="utf-8", exclude_characters=" \t=!~^$<>[]"), min_size=1, max_size=30)
VALUES = st.one_of(
    st.text(ENCODABLE),
    st.sampled_from(["a=b", "[contains]=x", ' "quoted" ', "it's", "line\nline", "a & b + c %20", "日本", "", " ", "=", "~="]),
)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    operator = draw(st.sampled_from(list(Operator)))
    return Condition(draw(SLUGS), operator, "true" if operator in VALUELESS else draw(VALUES))


@given(conditions())
def test_round_trip_through_text(condition: Condition) -> None:
    assert parse_condition(format_condition(condition)) == condition


@given(conditions())
def test_round_trip_through_a_percent_encoded_query(condition: Condition) -> None:
    assert parse_qsl(urlencode([condition.to_query()]), keep_blank_values=True, strict_parsing=True) == [
        (f"filter[{condition.slug}][{condition.operator}]", condition.value)
    ]


@given(conditions())
def test_round_trip_through_a_search_body(condition: Condition) -> None:
    entry = jsontext.loads(jsontext.dumps(condition.to_search()).encode())
    assert entry == {"attributeSlug": condition.slug, "operator": condition.operator.value, "value": condition.value}


@given(SLUGS, st.sampled_from(list(SIGNS)), VALUES, st.sampled_from(["", " ", " \t "]), st.sampled_from(["", " ", " \t "]))
def test_signs_keep_the_value_and_own_the_blanks(slug: str, sign: str, value: str, before: str, after: str) -> None:
    value = value.lstrip(" \t")
    if sign in ("<", ">") and value.startswith("=") and not after:
        after = " "  # without a blank this is the longer sign
    assert parse_condition(f"{slug}{before}{sign}{after}{value}") == Condition(slug, SIGNS[sign], value)


@given(SLUGS, st.sampled_from([item for item in Operator if item not in VALUELESS]), VALUES)
def test_words_keep_the_value(slug: str, operator: Operator, value: str) -> None:
    value = value.lstrip(" \t") or "x"
    assert parse_condition(f"{slug} {operator.upper()} {value}") == Condition(slug, operator, value)


@pytest.mark.parametrize(
    ("text", "slug", "operator", "value"),
    [
        ("email endsWith @acme.com", "email", Operator.ENDS_WITH, "@acme.com"),
        ("name contains a = b", "name", Operator.CONTAINS, "a = b"),
        ("name EQUALS  Ada  Lovelace ", "name", Operator.EQUALS, "Ada  Lovelace "),
        ("phone isEmpty", "phone", Operator.IS_EMPTY, "true"),
        ("phone ISEMPTY", "phone", Operator.IS_EMPTY, "true"),
        ("vip isTrue true", "vip", Operator.IS_TRUE, "true"),
        ("vip[isFalse]=true", "vip", Operator.IS_FALSE, "true"),
        ("vip[isFalse]", "vip", Operator.IS_FALSE, "true"),
        ("amount>=1000", "amount", Operator.GREATER_THAN_OR_EQUAL, "1000"),
        ("amount > =1000", "amount", Operator.GREATER_THAN, "=1000"),
        ("amount <= 1000", "amount", Operator.LESS_THAN_OR_EQUAL, "1000"),
        ("stage!=won", "stage", Operator.NOT_EQUALS, "won"),
        ("stage!~won", "stage", Operator.NOT_CONTAINS, "won"),
        ("name^=Ad", "name", Operator.STARTS_WITH, "Ad"),
        ("name$=ce", "name", Operator.ENDS_WITH, "ce"),
        ("name~[contains]=x", "name", Operator.CONTAINS, "[contains]=x"),
        ("name=a[contains]=b", "name", Operator.EQUALS, "a[contains]=b"),
        ("name='Ada'", "name", Operator.EQUALS, "'Ada'"),
        ("email[contains]= acme ", "email", Operator.CONTAINS, " acme "),
        ("email[CONTAINS]=acme", "email", Operator.CONTAINS, "acme"),
        ("email[contains]=", "email", Operator.CONTAINS, ""),
        ("a$b=c", "a$b", Operator.EQUALS, "c"),
        ("a[0][contains]=c", "a[0]", Operator.CONTAINS, "c"),
    ],
)
def test_spellings(text: str, slug: str, operator: Operator, value: str) -> None:
    assert parse_condition(text) == Condition(slug, operator, value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("phone", "has no operator"),
        ("", "names no attribute"),
        ("=x", "names no attribute"),
        ("[contains]=x", "names no attribute"),
        ("email startWith a", "unknown operator 'startWith'"),
        ("email[like]=a", "unknown operator 'like'"),
        ("email[]=a", "unknown operator ''"),
        ("email equals", "has no value"),
        ("email[equals]", "has no value"),
        ("phone isEmpty false", "takes no value"),
        ("name=\udcff", "not UTF-8"),
    ],
)
def test_refusals(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_condition(text)
    assert said in caught.value.message
    assert caught.value.hint


def test_values_may_have_brackets_of_their_own() -> None:
    """crmctl refuses only a single pair around all values, as in SQL."""
    assert parse_clause("note in (a),(b)").values == ("(a)", "(b)")
    assert parse_clause('note in "(a)"').values == ("(a)",)
    with pytest.raises(UsageError, match="brackets around"):
        parse_clause("note in (a, b)")


def test_an_unknown_operator_suggests_one_and_lists_all_of_them() -> None:
    with pytest.raises(UsageError) as caught:
        parse_condition("email startWith a")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean startsWith? valid operators: equals, ")
    assert all(str(operator) in caught.value.hint for operator in Operator)


def test_slugs_are_checked_against_the_attributes() -> None:
    attributes = [Attribute(id="1", slug="email"), Attribute(id="2", slug="amount", is_active=False)]
    check_slugs([parse_condition(text) for text in ("email~a", "amount>1", "id=1", "created_at>2026-01-01", "updated_at<2026")], attributes)
    with pytest.raises(UsageError) as caught:
        check_slugs([parse_condition("emial~a")], attributes)
    assert "emial" in caught.value.message
    assert caught.value.hint == "did you mean email? valid attributes: amount, email"


def test_valid_names_are_listed_in_a_fixed_order() -> None:
    slugs = ["name", "email", "phone", "company", "score", "notes", "status", "tags"]
    for typed in ("emial", "phon", "zzz", "Name"):
        hints = set()
        for turn in range(len(slugs)):
            attributes = [Attribute(id=slug, slug=slug) for slug in slugs[turn:] + slugs[:turn]]
            with pytest.raises(UsageError) as caught:
                check_slugs([parse_condition(f"{typed}~a")], attributes)
            hints.add(caught.value.hint)
        hint = str(hints.pop())
        assert not hints
        assert hint.partition("valid attributes: ")[2].split(", ") == sorted(slugs)
        meant = {"emial": "email", "phon": "phone", "Name": "name"}.get(typed)
        assert hint.startswith(f"did you mean {meant}? " if meant else "valid attributes")


@pytest.mark.parametrize(
    ("listed", "problem"),
    [("", "has no values"), (" ", "has no values"), ("a,", "has a comma without a value"), (",a", "has a comma without a value"),
     ('"a', "has a quote that does not fit"), ('a,"b"c', "has a quote that does not fit")],
)  # fmt: skip
def test_a_list_of_values_that_is_broken_says_how(listed: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_condition(f"stage in {listed}")
    assert caught.value.message == f"the filter {f'stage in {listed}'!r} {problem}"
