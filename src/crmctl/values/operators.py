"""The table of filter operators: one row says everything about an operator."""

from __future__ import annotations

import operator as compare
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Literal, Self

from crmctl.frozen import frozen
from crmctl.values.attribute_types import Family

Engine = Literal["sqlite", "postgresql"]
Sql = tuple[str, tuple[str, ...]]
"""An SQL condition with `?` placeholders, and its parameters."""

ToSql = Callable[[str, str, Engine], Sql]
"""Write the condition `column OPERATOR key` for an engine."""


class Kind(Enum):
    """Groups of operators that apply to the same families."""

    EQUALITY = "equality"
    PATTERN = "pattern"
    ORDER = "order"
    PRESENCE = "presence"
    TRUTH = "truth"


_TEXTUAL = frozenset({Family.TEXT, Family.IDENTITY, Family.CHOICE})
FAMILIES: dict[Kind, frozenset[Family]] = {
    Kind.EQUALITY: frozenset(Family),
    Kind.PATTERN: _TEXTUAL,
    Kind.ORDER: _TEXTUAL | {Family.NUMBER, Family.DATE},
    Kind.PRESENCE: frozenset(Family),
    Kind.TRUTH: frozenset({Family.TRUTH}),
}
"""The families that the operators of each kind apply to."""


def compares(sign: str) -> ToSql:
    """The SQL of an operator that both engines have."""
    return lambda column, key, _engine: (f"{column} {sign} ?", (key,))


def holds_text(column: str, engine: Engine) -> str:
    """Return the SQL condition that a column contains its one parameter."""
    # Not LIKE: it limits the pattern to 50,000 bytes and needs its wildcards escaped.
    return f"{'strpos' if engine == 'postgresql' else 'instr'}({column}, ?) > 0"


def _contains(column: str, key: str, engine: Engine) -> Sql:
    return holds_text(column, engine), (key,)


def _is_present(column: str, _key: str, _engine: Engine) -> Sql:
    return f"{column} IS NOT NULL", ()


def _ends_with(column: str, key: str, engine: Engine) -> Sql:
    end = f"right({column}, length(CAST(? AS TEXT)))" if engine == "postgresql" else f"substr({column}, -length(?))"
    return f"{end} = ?", (key, key)


def _starts_with(column: str, key: str, _engine: Engine) -> Sql:
    """A range that an index can serve: from the prefix up to the first text without it."""
    stem = key.rstrip("\U0010ffff")
    if not stem:
        return f"{column} >= ?", (key,)
    after = ord(stem[-1]) + 1
    following = stem[:-1] + chr(0xE000 if 0xD800 <= after <= 0xDFFF else after)
    return f"({column} >= ? AND {column} < ?)", (key, following)


@frozen
class Meaning:
    """What an operator means. `phrase` is its wording in the console, `help` its line in `crmctl help filters`.

    `matches` compares the key of a value with the key of the operand, `sql` does so in a database. An operator that `negates` another
    one matches exactly the other records. An operator with an `operand` takes no value: it compares with this one.
    """

    kind: Kind
    sign: str | None
    phrase: str
    help: str = ""
    matches: Callable[[str, str], bool] = compare.eq
    sql: ToSql = compares("=")
    negates: str | None = None
    operand: str | None = None
    is_indexed: bool = True
    """Whether an index can look up the matching values."""
    finds_operand: bool = False
    """Whether every match contains the operand, so that `contains` can narrow a search for a part of a value."""


class Operator(StrEnum):
    """The filter operators, each with its name on the wire and its meaning."""

    meaning: Meaning

    EQUALS = "equals", Meaning(Kind.EQUALITY, "=", "is", "exactly this", finds_operand=True)
    NOT_EQUALS = "notEquals", Meaning(Kind.EQUALITY, "!=", "is not", "not this, or no value", negates="equals")
    CONTAINS = (
        "contains",
        Meaning(Kind.PATTERN, "~", "contains", "has this text in it", compare.contains, _contains, is_indexed=False, finds_operand=True),
    )
    NOT_CONTAINS = "notContains", Meaning(Kind.PATTERN, "!~", "does not contain", "has not, or no value", negates="contains")
    STARTS_WITH = "startsWith", Meaning(Kind.PATTERN, "^=", "starts with", "", str.startswith, _starts_with, finds_operand=True)
    ENDS_WITH = "endsWith", Meaning(Kind.PATTERN, "$=", "ends with", "", str.endswith, _ends_with, is_indexed=False, finds_operand=True)
    GREATER_THAN = "greaterThan", Meaning(Kind.ORDER, ">", "is greater than, after", "", compare.gt, compares(">"))
    LESS_THAN = "lessThan", Meaning(Kind.ORDER, "<", "is less than, before", "", compare.lt, compares("<"))
    GREATER_THAN_OR_EQUAL = (
        "greaterThanOrEqual",
        Meaning(Kind.ORDER, ">=", "is at least, on or after", "", compare.ge, compares(">=")),
    )
    LESS_THAN_OR_EQUAL = "lessThanOrEqual", Meaning(Kind.ORDER, "<=", "is at most, on or before", "", compare.le, compares("<="))
    IS_EMPTY = "isEmpty", Meaning(Kind.PRESENCE, None, "is empty", negates="isNotEmpty", operand="true")
    IS_NOT_EMPTY = "isNotEmpty", Meaning(Kind.PRESENCE, None, "is not empty", "", lambda *_: True, _is_present, operand="true")
    IS_TRUE = "isTrue", Meaning(Kind.TRUTH, None, "is true", operand="true")
    IS_FALSE = "isFalse", Meaning(Kind.TRUTH, None, "is false", operand="false")

    def __new__(cls, name: str, meaning: Meaning) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    @property
    def takes_value(self) -> bool:
        return self.meaning.operand is None

    @property
    def is_negation(self) -> bool:
        """Whether this matches exactly the records that another operator does not match."""
        return self.meaning.negates is not None

    @property
    def positive(self) -> Operator:
        """The operator that this one negates, or itself."""
        return OPERATORS[self.meaning.negates] if self.meaning.negates else self


OPERATORS = {str(operator): operator for operator in Operator}
SIGNS = dict(sorted(((sign, operator) for operator in Operator if (sign := operator.meaning.sign)), key=lambda row: -len(row[0])))
"""The sign of every operator that has one; matching needs the longer ones first."""

VALUELESS = frozenset(operator for operator in Operator if not operator.takes_value)
"""Operators whose value on the wire is always `true`."""
