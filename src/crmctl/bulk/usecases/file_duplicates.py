"""Rows of a file that are one and the same, counted before an import: by the rules of `bulk dedupe`, with columns for attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crmctl.bulk.dedupe.candidates import MatchCandidates
from crmctl.bulk.dedupe.groups import GroupCounts, find_groups
from crmctl.bulk.dedupe.match_rules import Field, MatchRule, MatchTerm, parse_rules
from crmctl.bulk.dedupe.normal_forms import FORMS, plain_words, said, usual_form
from crmctl.bulk.sources.rows import Row, Source
from crmctl.models.attributes import Attribute, AttributeType

EXAMPLES = 10

TELLING = (AttributeType.EMAIL, AttributeType.PHONE_NUMBER)
"""Types of columns by which rows are compared when no rule is given: each is a rule."""


@dataclass
class FileDuplicates:
    """`groups` of rows that are one; `rows` that are more than one of each."""

    rules: Sequence[str]
    groups: int = 0
    rows: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "match": list(self.rules), "groups": self.groups, "rows": self.rows, "byRule": self.by_rule, "examples": self.examples,
        }  # fmt: skip


@dataclass(frozen=True)
class FileColumns:
    """The columns of a file as attributes, by header; where an object is known also `attributes` that they fill, and by header which one,
    and which part of it."""

    columns: Sequence[Attribute]
    attributes: Sequence[Attribute] = ()
    targets: Mapping[str, str] = field(default_factory=dict)

    def data(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """A row by header and by slug."""
        found = dict(cells)
        for header, target in self.targets.items():
            slug, dot, part = target.partition(".")
            if not dot:
                found[slug] = cells.get(header)
            elif cells.get(header):
                parts = found.get(slug)
                found[slug] = {**(parts if isinstance(parts, dict) else {}), part: cells[header]}
        return found


def count_duplicates(source: Source, columns: FileColumns, match: Sequence[str], most: int) -> FileDuplicates:
    """Read the file once more and compare its rows, with flat memory. Raises UsageError for rules that mean nothing."""
    known = [*columns.columns, *columns.attributes]
    rules = parse_rules(match, known, "") if match else _usual_rules(columns.columns)
    found = FileDuplicates([rule.said for rule in rules])
    if not rules:
        return found
    with MatchCandidates(rules, most) as candidates:
        for row in source.rows():
            if row.problem is None:
                candidates.add(str(row.first_line), columns.data(_cells(source, row)))
        candidates.compare()
        for group in find_groups(candidates, GroupCounts(), most):
            found.groups += 1
            found.rows += len(group.members) - 1
            texts = list(dict.fromkeys(rules[pair.rule].text for pair in group.pairs))
            for text in texts:
                found.by_rule[text] = found.by_rule.get(text, 0) + 1
            if len(found.examples) < EXAMPLES:
                lines = [int(candidates.record(member)[0]) for member in group.members]
                found.examples.append({"lines": lines, "rules": texts, "score": group.score})
    return found


def _usual_rules(columns: Sequence[Attribute]) -> tuple[MatchRule, ...]:
    """Each column of e-mail addresses or phone numbers; without one, rows that are equal in every column."""
    columns = list({column.slug: column for column in reversed(columns)}.values())[::-1]
    telling = [column for column in columns if column.type in TELLING]
    if telling:
        return tuple(MatchRule(column.slug, (_equal(column),)) for column in telling)
    every = MatchTerm(tuple(Field(column.slug) for column in columns), _ALL)
    return (MatchRule("all columns", (every,)),) if columns else ()


_ALL = replace(FORMS["text"], read=lambda value: plain_words(said(value)) or None)
"""Rows that are equal are so whatever their values stand for: `n/a` and 000 too."""


def _equal(column: Attribute) -> MatchTerm:
    return MatchTerm((Field(column.slug),), usual_form(column, ""))


def _cells(source: Source, row: Row) -> dict[str, Any]:
    if row.value is not None:
        return dict(row.value)
    found = dict(zip(source.header, row.cells, strict=False))
    if len(found) < len(source.header):
        # Columns of one name are values of one attribute.
        for name in found:
            found[name] = "; ".join(cell for header, cell in zip(source.header, row.cells, strict=False) if header == name and cell)
    return found
