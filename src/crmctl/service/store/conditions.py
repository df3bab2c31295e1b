"""Conditions into SQL: one table of operators per family of values. An array matches when any of its elements does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crmctl.models.filters import Condition, Operator
from crmctl.models.folded_text import fold
from crmctl.service.faults import BadRequest, shown
from crmctl.service.store import record_tables
from crmctl.service.store.dialect import SqlDialect
from crmctl.service.store.timestamps import micros_of
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.choices import FALSE, TRUE
from crmctl.service.values.conditions import MAX_CONDITIONS, too_many_conditions
from crmctl.service.values.dates import date_key, parse_instant
from crmctl.service.values.kinds import KINDS, Family
from crmctl.service.values.numbers import parse_number
from crmctl.service.values.text import Invalid, require_text

MAX_COMPARED = 20_000
"""Parameters of one statement's conditions; SQLite allows 32,766."""

_COMPARISONS = {
    Operator.GREATER_THAN: ">",
    Operator.LESS_THAN: "<",
    Operator.GREATER_THAN_OR_EQUAL: ">=",
    Operator.LESS_THAN_OR_EQUAL: "<=",
}
_PATTERNS = frozenset({Operator.CONTAINS, Operator.STARTS_WITH, Operator.ENDS_WITH})
COMPLEMENTS = {
    Operator.NOT_EQUALS: Operator.EQUALS,
    Operator.NOT_CONTAINS: Operator.CONTAINS,
    Operator.IS_EMPTY: Operator.IS_NOT_EMPTY,
}

_SEEKING = frozenset({Operator.EQUALS, Operator.STARTS_WITH, Operator.IS_NOT_EMPTY, Operator.IS_TRUE, Operator.IS_FALSE, *_COMPARISONS})
"""What an index can look up; the other operators must see every value."""

_ORDERED = frozenset({Operator.EQUALS, *_COMPARISONS})
_TEXTUAL = _ORDERED | _PATTERNS
OPERATORS = {
    Family.TEXT: _TEXTUAL,
    Family.IDENTITY: _TEXTUAL,
    Family.CHOICE: _TEXTUAL,
    Family.NUMBER: _ORDERED,
    Family.DATE: _ORDERED,
    Family.TRUTH: frozenset({Operator.EQUALS, Operator.IS_TRUE, Operator.IS_FALSE}),
}


@dataclass(frozen=True)
class Where:
    """An SQL condition and its parameters.

    `opposite`: with the same parameters, exactly the other rows; there when those are cheaper to count.
    `index`: the column whose index leads straight to the rows. `is_pinned`: that index holds them in order of creation.
    `is_covered`: an index holds all that is compared, so that the rows can be counted without the table, were it worth it.
    """

    sql: str
    params: tuple[Any, ...] = ()
    opposite: str | None = None
    index: str | None = None
    is_pinned: bool = False
    is_covered: bool = False


@dataclass(frozen=True)
class _Field:
    """What a slug stands for in SQL."""

    slug: str
    family: Family
    column: str
    exact: str | None = None
    options: tuple[str, ...] = ()
    holds_many: bool = False
    is_indexed: bool = True
    key: Callable[[str], Any] = str

    def index_for(self, operator: Operator) -> str | None:
        return self.column if self.is_indexed and operator in _SEEKING else None


_KEYS: dict[Family, Callable[[str], Any]] = {
    Family.TEXT: fold,
    Family.IDENTITY: fold,
    Family.CHOICE: fold,
    Family.NUMBER: parse_number,
    Family.DATE: date_key,
    Family.TRUTH: str,
}

_SYSTEM = {
    "id": _Field("id", Family.IDENTITY, "id", is_indexed=False, key=fold),
    "created_at": _Field("created_at", Family.DATE, "created_at", key=lambda text: micros_of(parse_instant(text))),
    "updated_at": _Field("updated_at", Family.DATE, "updated_at", key=lambda text: micros_of(parse_instant(text))),
}


def compile_condition(condition: Condition, attributes: Mapping[str, StoredAttribute], dialect: SqlDialect) -> Where:
    """Raises BadRequest naming the slug for an unknown slug, an operator its type does not have, or a value of the wrong kind."""
    field = _SYSTEM.get(condition.slug) or _attribute_field(condition.slug, attributes)
    try:
        require_text(condition.value)
        is_covered = field.is_indexed and condition.operator is not Operator.NOT_CONTAINS
        return replace(_compile(field, condition.operator, condition.value, dialect), is_covered=is_covered)
    except Invalid as error:
        problem = f"the filter on {condition.slug!r} with {condition.operator} {error}"
        raise BadRequest(problem, {"field": "value", "slug": condition.slug, "operator": str(condition.operator)}) from None


def _attribute_field(slug: str, attributes: Mapping[str, StoredAttribute]) -> _Field:
    attribute = attributes.get(slug)
    if attribute is None:
        valid = [*attributes, *_SYSTEM]
        raise BadRequest(
            f"unknown attribute {shown(slug)!r} in a filter; filters can use: {', '.join(valid)}",
            {"field": "attributeSlug", "slug": shown(slug), "valid": valid},
        )
    family = KINDS[attribute.type].family
    return _Field(
        slug,
        family,
        record_tables.column(attribute),
        record_tables.exact_column(attribute) if family is Family.TEXT else None,
        attribute.options,
        attribute.holds_many,
        attribute.is_indexed,
        _KEYS[family],
    )


def _compile(field: _Field, operator: Operator, value: str, dialect: SqlDialect) -> Where:
    positive = COMPLEMENTS.get(operator, operator)
    allowed = OPERATORS[field.family]
    if positive is not Operator.IS_NOT_EMPTY and positive not in allowed:
        valid = [str(each) for each in Operator if COMPLEMENTS.get(each, each) in allowed | {Operator.IS_NOT_EMPTY}]
        raise Invalid(f"does not apply to this type of attribute; what does is: {', '.join(valid)}")
    is_complement = operator in COMPLEMENTS
    if not operator.takes_value and value.lower() != TRUE:
        raise Invalid("takes the value true only")
    # Empty is one thing: to equal the empty text is to be empty, for every type that has an empty text.
    if positive is Operator.EQUALS and value == "" and Operator.CONTAINS in allowed:
        positive, is_complement = Operator.IS_NOT_EMPTY, not is_complement
    if positive is Operator.IS_NOT_EMPTY:
        return _presence(field, is_complement)
    column = _comparable(field, positive)
    sql, params = _predicate(field, "element.value" if field.holds_many else column, positive, value, dialect)
    if field.holds_many:
        sql = dialect.any_element(column, sql)
    if is_complement:
        return Where(f"({field.column} IS NULL OR NOT {sql})", params, sql)
    index = field.index_for(positive) if params else None
    is_equal = positive in (Operator.EQUALS, Operator.IS_TRUE, Operator.IS_FALSE)
    return Where(sql, params, None, index, index is not None and is_equal)


def _presence(field: _Field, is_empty: bool) -> Where:
    index = field.index_for(Operator.IS_NOT_EMPTY)
    # A projection is text: all of it sorts from the empty text on, which an index can look up and IS NOT NULL cannot.
    filled = f"{field.column} >= ''" if index and field.slug not in _SYSTEM else f"{field.column} IS NOT NULL"
    return Where(f"{field.column} IS NULL", (), filled, index, index is not None) if is_empty else Where(filled, (), None, index)


def _comparable(field: _Field, operator: Operator) -> str:
    if field.holds_many and field.exact and operator is Operator.EQUALS:
        return f"coalesce({field.exact}, {field.column})"
    return field.column


def _predicate(field: _Field, expression: str, operator: Operator, value: str, dialect: SqlDialect) -> tuple[str, tuple[Any, ...]]:
    if field.family is Family.TRUTH:
        return f"{expression} = ?", (_truth(operator, value),)
    if field.family is Family.CHOICE:
        chosen = [option for option in field.options if _matches(option, operator, value)]
        return (f"{expression} IN ({', '.join('?' * len(chosen))})", tuple(chosen)) if chosen else ("1 = 0", ())
    if operator is Operator.EQUALS and field.exact:
        if field.holds_many:
            return f"{expression} = ?", (value,)
        return f"({expression} = ? AND coalesce({field.exact}, {expression}) = ?)", (field.key(value), value)
    key = field.key(value)
    if operator is Operator.EQUALS:
        return f"{expression} = ?", (key,)
    if operator in _COMPARISONS:
        return f"{expression} {_COMPARISONS[operator]} ?", (key,)
    if key == "":
        return f"{expression} IS NOT NULL", ()
    if operator is Operator.CONTAINS:
        return dialect.contains(expression), (key,)
    if operator is Operator.ENDS_WITH:
        return dialect.ends_with(expression), (key, key)
    if operator is Operator.STARTS_WITH:
        return _starts_with(expression, key)
    raise NotImplementedError(f"{operator} in SQL")


def _starts_with(expression: str, key: str) -> tuple[str, tuple[Any, ...]]:
    """As a range, which an index can serve: from the prefix up to the first text that no longer has it."""
    stem = key.rstrip("\U0010ffff")
    if not stem:
        return f"{expression} >= ?", (key,)
    after = ord(stem[-1]) + 1
    following = stem[:-1] + chr(0xE000 if 0xD800 <= after <= 0xDFFF else after)
    return f"({expression} >= ? AND {expression} < ?)", (key, following)


def _truth(operator: Operator, value: str) -> str:
    if operator is Operator.IS_TRUE:
        return TRUE
    if operator is Operator.IS_FALSE:
        return FALSE
    word = value.lower()
    if word not in (TRUE, FALSE):
        raise Invalid("needs true or false")
    return word


def _matches(option: str, operator: Operator, value: str) -> bool:
    """A select's options are few and known: decide here which match, so that the index does the rest."""
    if operator is Operator.EQUALS:
        return option == value
    left, right = fold(option), fold(value)
    match operator:
        case Operator.CONTAINS:
            return right in left
        case Operator.STARTS_WITH:
            return left.startswith(right)
        case Operator.ENDS_WITH:
            return left.endswith(right)
        case Operator.GREATER_THAN:
            return left > right
        case Operator.LESS_THAN:
            return left < right
        case Operator.GREATER_THAN_OR_EQUAL:
            return left >= right
        case Operator.LESS_THAN_OR_EQUAL:
            return left <= right
    raise NotImplementedError(f"{operator} among options")


def compile_conditions(conditions: Sequence[Condition], attributes: Mapping[str, StoredAttribute], dialect: SqlDialect) -> list[Where]:
    """Raises BadRequest as compile_condition does, and for more conditions, or values in them, than a statement can have."""
    if len(conditions) > MAX_CONDITIONS:
        raise too_many_conditions(len(conditions))
    wheres = [compile_condition(condition, attributes, dialect) for condition in conditions]
    if sum(len(where.params) for where in wheres) > MAX_COMPARED:
        raise BadRequest(
            f"these filters compare with more than {MAX_COMPARED:,} values, options that they match included",
            {"field": "filters", "limit": MAX_COMPARED},
        )
    return wheres


def combine(conditions: Sequence[Where]) -> Where:
    """All of them at once."""
    if len(conditions) == 1:
        return conditions[0]
    params = tuple(param for condition in conditions for param in condition.params)
    return Where(" AND ".join(condition.sql for condition in conditions), params)
