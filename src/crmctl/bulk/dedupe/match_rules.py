"""`--match` in words: a rule is terms that all must hold, several rules are alternatives. Reading and checking; nothing is compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.dedupe.normal_forms import FORMS, NormalForm, usual_form
from crmctl.bulk.dedupe.similarity import WORDS
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import fold
from crmctl.models.nearest import suggestion

_TERM = re.compile(r"\s*(?P<fields>[^:~,?\s][^:~,?]*?)\s*(?::\s*(?P<form>[\w-]+)\s*)?(?:~\s*(?P<least>[^,~:?]*?)\s*)?(?P<unless>\?\s*)?")
HINT = "for example --match email, --match 'name~0.92,company', --match 'website:domain'; crmctl help matching"
LEAST = 0.5
"""Texts that are less alike have nothing to do with each other; a rule that says so is a mistake."""


@dataclass(frozen=True)
class Field:
    """An attribute, or a part of its value."""

    slug: str
    part: str | None = None

    @property
    def said(self) -> str:
        return f"{self.slug}.{self.part}" if self.part else self.slug

    def values(self, records: Sequence[Mapping[str, Any]]) -> list[Any]:
        """What records hold of it."""
        slug = self.slug
        values = [data.get(slug) for data in records]
        if self.part is None:
            return values
        wanted = fold(self.part)
        return [next((item for key, item in value.items() if fold(key) == wanted), None) if isinstance(value, Mapping) else None
                for value in values]  # fmt: skip


@dataclass(frozen=True)
class MatchTerm:
    """One field, or several as one text, in a normal form: equal, or alike by `least` (0 to 1). Where a value is blank it does not hold,
    an `optional` one does: of that only values that are there and differ say no."""

    fields: tuple[Field, ...]
    form: NormalForm
    least: float | None = None
    optional: bool = False

    @property
    def source(self) -> str:
        """The fields in their form: terms that differ only in `least` read the same."""
        return f"{'+'.join(field.said for field in self.fields)}:{self.form.name}"

    @property
    def said(self) -> str:
        """As it is written, with its form."""
        return self.source + (f"~{self.least:g}" if self.least is not None else "") + ("?" if self.optional else "")

    @property
    def reading(self) -> str:
        """The source, and whether its words are sorted: terms that read the same share what is read."""
        return f"{self.source}, words sorted" if self.sorts else self.source

    @property
    def sorts(self) -> bool:
        """Whether words are compared in any order: `sort_words`."""
        return self.least is not None and self.form.measure == WORDS

    def read(self, records: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """The normal forms of what records hold of it; None for nothing."""
        read, columns = self.form.read, [field.values(records) for field in self.fields]
        values = columns[0] if len(columns) == 1 else map(_joined, zip(*columns, strict=True))
        return [None if value is None or value == "" else read(value) for value in values]


def _joined(values: Sequence[Any]) -> Any:
    """Several values as one text; where not all are texts as a list."""
    there = [value for value in values if value is not None and value != ""]
    try:
        return " ".join(there)
    except TypeError:
        return there[0] if len(there) == 1 else there


def sort_words(text: str | None) -> str | None:
    """A normal form with its words in alphabetical order."""
    return " ".join(sorted(text.split())) if text and " " in text else text


@dataclass(frozen=True)
class MatchRule:
    """Terms that all must hold, as they were written."""

    text: str
    terms: tuple[MatchTerm, ...]

    @property
    def said(self) -> str:
        return ",".join(term.said for term in self.terms)

    @property
    def is_equality(self) -> bool:
        return all(term.least is None for term in self.terms)


def parse_rules(texts: Sequence[str], attributes: Sequence[Attribute], object_slug: str) -> tuple[MatchRule, ...]:
    """The rules of `--match`, in the order given. Raises UsageError for what is none, or names what is not there."""
    known = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    if not texts:
        raise UsageError("say what makes two records the same: --match", hint=HINT, code="no_rule")
    rules = tuple(MatchRule(text, tuple(_term(one, text, known, object_slug) for one in text.split(","))) for text in texts)
    for rule in rules:
        if all(term.optional for term in rule.terms):
            raise UsageError(f"--match {rule.text}: a term without ? has to hold", hint=HINT, code="malformed_rule")
    return rules


def _term(one: str, text: str, known: Mapping[str, Attribute], object_slug: str) -> MatchTerm:
    found = _TERM.fullmatch(one)
    if found is None:
        raise UsageError(f"--match {text}: {one.strip()!r} is no term", hint=HINT, code="malformed_rule")
    fields = tuple(_field(name.strip(), text, known) for name in found["fields"].split("+"))
    first = known[fields[0].slug]
    form = usual_form(first, object_slug)
    if fields[0].part:
        form = FORMS["name" if first.type == "name" else "text"]
    if (wanted := found["form"]) is not None:
        if wanted not in FORMS:
            raise UsageError(
                f"--match {text}: there is no form {wanted}",
                hint=suggestion(wanted, FORMS, f"one of: {', '.join(FORMS)}"),
                code="unknown_form",
            )
        form = FORMS[wanted]
    return MatchTerm(fields, form, _least(found["least"], text), found["unless"] is not None)


def _field(name: str, text: str, known: Mapping[str, Attribute]) -> Field:
    slug, dot, part = (name, "", "") if name in known else name.partition(".")
    if slug not in known or (dot and not part):
        hint = f"the attributes are: {', '.join(known)}"
        raise UsageError(f"--match {text}: there is no attribute {slug}", hint=hint, code="unknown_attribute")
    return Field(slug, part or None)


def _least(given: str | None, text: str) -> float | None:
    if given is None:
        return None
    try:
        least = float(given)
    except ValueError:
        least = -1.0
    if not LEAST <= least < 1.0:
        raise UsageError(
            f"--match {text}: {given!r} is no similarity", hint=f"from {LEAST} (hardly alike) to 0.99; without ~ it means equal",
            code="malformed_rule",
        )  # fmt: skip
    return least
