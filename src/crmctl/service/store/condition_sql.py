"""Read conditions from a query, a search body or a definitions file, and write them as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.service.faults import BadRequest, Body, shown
from crmctl.service.store import record_tables
from crmctl.service.store.tx import SqliteDialect, micros_of
from crmctl.values.attribute_types import Family, StoredAttribute
from crmctl.values.conditions import Comparison, resolve
from crmctl.values.filters import Condition
from crmctl.values.folded_text import fold, word_patterns
from crmctl.values.operators import OPERATORS, VALUELESS, Kind, Operator, holds_text
from crmctl.values.value_readers import Invalid, parse_instant

MAX_CONDITIONS = 100
"""Most conditions of one search. SQLite nests statements at most 1,000 levels deep, and a condition adds at least one."""


class ConditionDefinition(Body):
    """An entry in the `filters` of a search body."""

    attribute_slug: str
    operator: str
    value: str | bool | int | float | None = None


def too_many_conditions(count: int) -> BadRequest:
    return BadRequest(
        f"a search can have at most {MAX_CONDITIONS} filters, this one has {count}", {"field": "filters", "limit": MAX_CONDITIONS}
    )


def read_conditions(definitions: Iterable[ConditionDefinition]) -> list[Condition]:
    """Raises BadRequest for an unknown operator."""
    return [read_condition(definition.attribute_slug, definition.operator, definition.value) for definition in definitions]


def read_condition(slug: str, operator: str, value: Any) -> Condition:
    """Read one condition. `value` is text by the specification; JSON numbers and booleans count as text, and operators that take none need
    none. Raises BadRequest."""
    if operator not in OPERATORS:
        raise BadRequest(
            f"unknown operator {shown(operator)!r} in the filter on {shown(slug)!r}; the operators are: {', '.join(OPERATORS)}",
            {"field": "operator", "slug": shown(slug), "valid": list(OPERATORS)},
        )
    if value is None and operator in VALUELESS:
        value = "true"
    if isinstance(value, bool | int | float | Decimal):
        value = jsontext.dumps(value)
    if not isinstance(value, str):
        raise BadRequest(f"the filter on {shown(slug)!r} needs a value given as a string", {"field": "value", "slug": shown(slug)})
    return Condition(slug, OPERATORS[operator], value)


MAX_COMPARED = 20_000
"""Most parameters of the conditions in one statement. SQLite allows 32,766."""


@frozen
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


@frozen
class _Field:
    slug: str
    family: Family
    column: str
    exact: str | None = None
    options: tuple[str, ...] = ()
    holds_many: bool = False
    is_indexed: bool = True

    def index_for(self, operator: Operator) -> str | None:
        return self.column if self.is_indexed and operator.meaning.is_indexed else None


_SYSTEM = {
    "id": _Field("id", Family.IDENTITY, "id", is_indexed=False),
    "created_at": _Field("created_at", Family.DATE, "created_at"),
    "updated_at": _Field("updated_at", Family.DATE, "updated_at"),
}


def compile_condition(condition: Condition, attributes: Mapping[str, StoredAttribute], dialect: SqliteDialect) -> Where:
    """Return the SQL of a condition. Raises BadRequest for an unknown slug, an operator that does not fit its type, or a wrong value."""
    return _compiled(_SYSTEM.get(condition.slug) or _attribute_field(condition.slug, attributes), condition, dialect)


def compile_part(condition: Condition, folded: str, exact: str, dialect: SqliteDialect) -> Where:
    """Return the SQL of a condition on a part of a value, given as folded and as exact text. Raises BadRequest."""
    return _compiled(_Field(condition.slug, Family.TEXT, f"nullif({folded}, '')", exact, is_indexed=False), condition, dialect)


def _compiled(field: _Field, condition: Condition, dialect: SqliteDialect) -> Where:
    try:
        comparison = resolve(field.family, condition.operator, condition.value)
    except Invalid as error:
        problem = f"the filter on {condition.slug!r} with {condition.operator} {error}"
        raise BadRequest(problem, {"field": "value", "slug": condition.slug, "operator": str(condition.operator)}) from None
    is_covered = field.is_indexed and condition.operator is not Operator.NOT_CONTAINS
    where = _presence(field, comparison) if comparison.operator.meaning.kind is Kind.PRESENCE else _compile(field, comparison, dialect)
    return replace(where, is_covered=is_covered)


def _attribute_field(slug: str, attributes: Mapping[str, StoredAttribute]) -> _Field:
    attribute = attributes.get(slug)
    if attribute is None:
        valid = [*attributes, *_SYSTEM]
        raise BadRequest(
            f"unknown attribute {shown(slug)!r} in a filter; filters can use: {', '.join(valid)}",
            {"field": "attributeSlug", "slug": shown(slug), "valid": valid},
        )
    family = attribute.row.family
    exact = record_tables.exact_column(attribute) if family is Family.TEXT else None
    return _Field(slug, family, record_tables.column(attribute), exact, attribute.options, attribute.holds_many, attribute.is_indexed)


def _presence(field: _Field, comparison: Comparison) -> Where:
    index = field.index_for(comparison.operator)
    # A projection is text and sorts after the empty text. An index can look that up, but not IS NOT NULL.
    filled = f"{field.column} >= ''" if index and field.slug not in _SYSTEM else f"{field.column} IS NOT NULL"
    if comparison.is_negated:
        return Where(f"{field.column} IS NULL", (), filled, index, index is not None)
    return Where(filled, (), None, index)


def _compile(field: _Field, comparison: Comparison, dialect: SqliteDialect) -> Where:
    is_exact = comparison.is_exact and field.exact is not None
    column = f"coalesce({field.exact}, {field.column})" if is_exact and field.holds_many else field.column
    sql, params = _predicate(field, "element.value" if field.holds_many else column, comparison, dialect)
    if field.holds_many:
        sql = dialect.any_element(column, sql)
    if comparison.is_negated:
        return Where(f"({field.column} IS NULL OR NOT {sql})", params, sql)
    index = field.index_for(comparison.operator) if params else None
    is_equal = comparison.operator.meaning.kind in (Kind.EQUALITY, Kind.TRUTH)
    return Where(sql, params, None, index, index is not None and is_equal)


def _predicate(field: _Field, expression: str, comparison: Comparison, dialect: SqliteDialect) -> tuple[str, tuple[Any, ...]]:
    operator, key = comparison.operator, comparison.key
    if field.family is Family.CHOICE:
        # Options are few and known: select the matching ones here, so that the index can look them up.
        matches = operator.meaning.matches
        chosen = [option for option in field.options if matches(option if comparison.is_exact else fold(option), key)]
        return (f"{expression} IN ({', '.join('?' * len(chosen))})", tuple(chosen)) if chosen else ("1 = 0", ())
    if comparison.is_exact and not field.holds_many:
        folded, params = operator.meaning.sql(expression, fold(key), dialect.engine)
        exact, more = operator.meaning.sql(f"coalesce({field.exact}, {expression})", key, dialect.engine)
        return f"({folded} AND {exact})", (*params, *more)
    sql, params = operator.meaning.sql(expression, key, dialect.engine)
    return sql, tuple(micros_of(parse_instant(param)) for param in params) if field.slug in _SYSTEM and field.slug != "id" else params


def compile_conditions(conditions: Sequence[Condition], attributes: Mapping[str, StoredAttribute], dialect: SqliteDialect) -> list[Where]:
    """Return the SQL of each condition. Raises BadRequest like `compile_condition`, and for more conditions or values than allowed."""
    if len(conditions) > MAX_CONDITIONS:
        raise too_many_conditions(len(conditions))
    wheres = [compile_condition(condition, attributes, dialect) for condition in conditions]
    if sum(len(where.params) for where in wheres) > MAX_COMPARED:
        raise BadRequest(
            f"these filters compare with more than {MAX_COMPARED:,} values, matching options included",
            {"field": "filters", "limit": MAX_COMPARED},
        )
    return wheres


MAX_WORDS = 8


def holds_words(columns: Sequence[str], text: str, dialect: SqliteDialect) -> list[Where]:
    """Return one condition for each word of a search: one of the columns has it, with or without accents."""
    if dialect.engine == "postgresql":
        words, matches, size = word_patterns(text, re.escape), "{0} ~ ?", "octet_length({0})"
    else:
        words = [
            (plain, f"*{pattern}*") for plain, pattern in word_patterns(text, lambda letter: f"[{letter}]" if letter in "*?[" else letter)
        ]
        matches, size = "{0} GLOB ?", "length(CAST({0} AS BLOB))"
    # Few texts have accents, and a pattern takes many times as long as a word.
    pattern = f"{{holds}} OR (length({{0}}) <> {size} AND {matches})"
    either = " OR ".join(pattern.format(column, holds=holds_text(column, dialect.engine)) for column in columns) or "1 = 0"
    return [Where(f"({either})", pair * len(columns)) for pair in words[:MAX_WORDS]]


EVERYTHING = Where("1 = 1")


def combine(conditions: Sequence[Where]) -> Where:
    """Return the condition that all of them hold."""
    if len(conditions) < 2:
        return conditions[0] if conditions else EVERYTHING
    params = tuple(param for condition in conditions for param in condition.params)
    return Where(" AND ".join(condition.sql for condition in conditions), params)
