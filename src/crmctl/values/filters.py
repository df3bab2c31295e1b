"""Filter conditions: their two wire forms (specification 4.3) and how people write them.

`client/query/` resolves them against the attributes of an object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from crmctl.errors import UsageError
from crmctl.frozen import frozen
from crmctl.models.ids import suggestion
from crmctl.values.operators import OPERATORS, SIGNS, Operator

if TYPE_CHECKING:
    from crmctl.models.resources import Attribute


@frozen
class Condition:
    """One condition on an attribute. Operators without a value have `true`."""

    slug: str
    operator: Operator
    value: str = "true"

    def to_query(self) -> tuple[str, str]:
        """Return the query parameter of List Records: `filter[<slug>][<operator>]` and its value, before percent-encoding."""
        return f"filter[{self.slug}][{self.operator}]", self.value

    def to_search(self) -> dict[str, str]:
        """Return the entry in the `filters` of a search body."""
        return {"attributeSlug": self.slug, "operator": str(self.operator), "value": self.value}


@frozen
class Clause:
    """One condition as written: a slug or a path that begins with one, an operator, and values.

    With several values `equals` matches any of them and `notEquals` none. `is_exact`: the wire form, whose value stays unchanged.
    """

    target: str
    operator: Operator
    values: tuple[str, ...] = ("true",)
    is_exact: bool = False
    is_list: bool = False

    @property
    def value(self) -> str:
        return self.values[0]


LISTS: dict[str, Operator] = {"in": Operator.EQUALS, "not in": Operator.NOT_EQUALS}
"""Words before several values, separated by commas and quoted as in CSV."""

FIELDS_OF_EVERY_RECORD = ("id", "created_at", "updated_at")
"""Fields that are no attributes. A service may filter by them, so crmctl never refuses them."""

_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
# The slug is as short as possible: it ends before the first `[operator]=`, sign or blank.
_CONDITION = re.compile(
    rf"""[ \t]*
    (?P<slug>(?!{_SIGN}|\[)[^ \t]+?)
    (?: \[(?P<bracketed>[^\[\]]*)\] (?:=(?P<wire_value>.*))? \Z
      | [ \t]*(?P<sign>{_SIGN})[ \t]*(?P<sign_value>.*) \Z
      | [ \t]+(?P<word>[^ \t]+) (?:[ \t]+(?P<word_value>.*))? \Z
    )""",
    re.VERBOSE | re.DOTALL,
)
_LIST = re.compile(r"[ \t]+(?P<word>in|not[ \t]+in)(?:[ \t]+(?P<values>.*))?\Z", re.IGNORECASE | re.DOTALL)
_LISTED_VALUE = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>[^",]*))(?P<comma>,|\Z)', re.DOTALL)
_BY_FOLDED_NAME = {name.lower(): operator for name, operator in OPERATORS.items()}
_VALID = (*OPERATORS, *LISTS)
_VALID_OPERATORS = f"valid operators: {', '.join(_VALID)}, or {' '.join(SIGNS)}"
_EXAMPLES = "write 'email endsWith @acme.com', 'amount>=1000' or 'email[contains]=acme'; see: crmctl help filters"

_PAIRS = (("'", "'"), ('"', '"'), ("“", "”"))


def parse_condition(text: str) -> Condition:
    """Read one condition with one value. Raises UsageError for anything else."""
    clause = parse_clause(text)
    if clause.is_list:
        raise UsageError(f"the filter {text!r} has a list of values where one is expected", hint="give one condition", code="bad_filter")
    return Condition(clause.target, clause.operator, clause.value)


def parse_clause(text: str) -> Clause:
    """Read one condition in any of the three spellings: words, signs, or the wire form `slug[operator]=value`; or `slug in a,b`.

    The value is everything that follows. Raises UsageError for text that is no condition or names an unknown operator.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("a filter holds bytes that are not UTF-8 text", hint="check the terminal's encoding", code="bad_filter") from None
    match = _CONDITION.match(text)
    if match is None:
        problem = "names no attribute" if re.match(rf"[ \t]*({_SIGN}|\[|\Z)", text) else "has no operator"
        raise UsageError(f"the filter {text!r} {problem}", hint=_EXAMPLES, code="bad_filter")
    parts = match.groupdict()
    if parts["word"] and (listed := _LIST.match(text, match.end("slug"))):
        operator = LISTS[" ".join(listed["word"].lower().split())]
        return Clause(parts["slug"], operator, split_values(listed["values"] or "", text), is_list=True)
    if parts["sign"] == "<" and (parts["sign_value"] or "").startswith(">"):
        raise UsageError(f"unknown operator '<>' in the filter {text!r}", hint=_VALID_OPERATORS, code="unknown_operator")
    if parts["sign"]:
        operator = SIGNS[parts["sign"]]
    elif (named := _BY_FOLDED_NAME.get((name := parts["word"] or parts["bracketed"] or "").lower())) is not None:
        operator = named
    else:
        hint = suggestion(name, _VALID, _VALID_OPERATORS)
        raise UsageError(f"unknown operator {name!r} in the filter {text!r}", hint=hint, code="unknown_operator")
    value = next((parts[name] for name in ("wire_value", "sign_value", "word_value") if parts[name] is not None), None)
    return Clause(parts["slug"], operator, (_value(operator, value, text),), is_exact=parts["bracketed"] is not None)


def split_values(listed: str, text: str) -> tuple[str, ...]:
    """Return the values of `a,"b, c",d`, each once and without blanks around it. Raises UsageError, which shows `text`."""
    if re.fullmatch(r"\s*\([^()]*\)\s*", listed):
        raise UsageError(f"the filter {text!r} has brackets around its values", hint="leave them out: status in new,won", code="bad_filter")
    values: list[str] = []
    position, goes_on = 0, True
    while goes_on:
        match = _LISTED_VALUE.match(listed, position)
        if match is None or (match["quoted"] is None and not match["plain"].strip()):
            problem = "has no values" if not listed.strip() else "has a comma without a value" if match else "has a quote that does not fit"
            raise UsageError(
                f"the filter {text!r} {problem}", hint="for example 'stage in won,lost' or 'name in \"Smith, Ann\",Ada'", code="bad_filter"
            )
        values.append(match["quoted"].replace('""', '"') if match["quoted"] is not None else match["plain"].strip())
        position, goes_on = match.end(), match["comma"] == ","
    return tuple(dict.fromkeys(values))


def format_condition(condition: Condition) -> str:
    """Return the wire form, which `parse_condition` reads back exactly for every slug without blanks, signs and brackets."""
    return f"{condition.slug}[{condition.operator}]={condition.value}"


def check_slugs(conditions: Iterable[Condition], attributes: Sequence[Attribute]) -> None:
    """Raise UsageError, listing the valid slugs, when a condition names an attribute the object does not have."""
    slugs = sorted(attribute.slug for attribute in attributes)
    for condition in conditions:
        if condition.slug not in slugs and condition.slug not in FIELDS_OF_EVERY_RECORD:
            raise UsageError(
                f"unknown attribute {condition.slug!r} in a filter",
                hint=suggestion(condition.slug, [*slugs, *FIELDS_OF_EVERY_RECORD], f"valid attributes: {', '.join(slugs)}"),
                code="unknown_attribute",
            )


def mistaken_value(clause: Clause) -> str | None:
    """Return a warning about a value with a second = or with quotes, which are probably a mistake."""
    value = clause.value
    if clause.is_exact or clause.is_list or clause.operator is not Operator.EQUALS:
        return None
    inner = value.removeprefix("=").strip()
    inner = inner[1:-1] if len(inner) > 1 and (inner[0], inner[-1]) in _PAIRS else inner
    if inner == value:
        return None
    return f"{clause.target} is compared with all of {value!r}; --filter '{clause.target}={inner}' is without that"


def _value(operator: Operator, value: str | None, text: str) -> str:
    if operator.takes_value:
        if value is None:
            raise UsageError(f"the filter {text!r} has no value", hint="to find records without a value use isEmpty", code="bad_filter")
        return value
    if (value or "true").strip().lower() != "true":
        raise UsageError(f"the operator {operator} in the filter {text!r} takes no value", hint=f"leave {value!r} out", code="bad_filter")
    return "true"
