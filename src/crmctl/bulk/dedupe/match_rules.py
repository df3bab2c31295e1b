"""`--match` in words: a rule is terms that all must hold, several rules are alternatives. Reading and checking; nothing is compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from crmctl.bulk.dedupe.normal_forms import FORMS, NormalForm, usual_form
from crmctl.bulk.dedupe.similarity import WORDS
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import fold
from crmctl.models.nearest import suggestion

_TERM = re.compile(r"\s*(?P<fields>[^:~,\s][^:~,]*?)\s*(?::\s*(?P<form>[\w-]+)\s*)?(?:~\s*(?P<least>[^,~:]*?)\s*)?")
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

    def value(self, data: Mapping[str, Any]) -> Any:
        """What a record holds of it."""
        value = data.get(self.slug)
        if self.part is None:
            return value
        wanted = fold(self.part)
        return next((item for key, item in value.items() if fold(key) == wanted), None) if isinstance(value, Mapping) else None


@dataclass(frozen=True)
class MatchTerm:
    """One field, or several as one text, in a normal form: equal, or alike by `least` (0 to 1)."""

    fields: tuple[Field, ...]
    form: NormalForm
    least: float | None = None

    @property
    def source(self) -> str:
        """The fields in their form: terms that differ only in `least` read the same."""
        return f"{'+'.join(field.said for field in self.fields)}:{self.form.name}"

    @property
    def said(self) -> str:
        """As it is written, with its form."""
        return self.source + (f"~{self.least:g}" if self.least is not None else "")

    @property
    def reading(self) -> str:
        """What `reader` makes: terms that read the same share it."""
        return f"{self.source}, words sorted" if self._sorts else self.source

    def reader(self) -> Callable[[Mapping[str, Any]], str | None]:
        """Gives the normal form of what a record holds; None for nothing. Words that are compared in any order are
        sorted."""
        read = self.form.read if not self._sorts else self._read_sorted
        if len(self.fields) == 1 and self.fields[0].part is None:
            slug = self.fields[0].slug

            def read_one(data: Mapping[str, Any]) -> str | None:
                value = data.get(slug)
                return None if value is None or value == "" else read(value)

            return read_one
        if any(field.part for field in self.fields):
            getters = [field.value for field in self.fields]
        else:
            getters = [partial(_value, field.slug) for field in self.fields]

        def read_all(data: Mapping[str, Any]) -> str | None:
            values = [value for get in getters if (value := get(data)) is not None and value != ""]
            if not values:
                return None
            try:
                return read(" ".join(values))
            except TypeError:
                return read(values[0] if len(values) == 1 else values)

        return read_all

    @property
    def _sorts(self) -> bool:
        return self.least is not None and self.form.measure == WORDS

    def _read_sorted(self, value: Any) -> str | None:
        text = self.form.read(value)
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
    return tuple(MatchRule(text, tuple(_term(one, text, known, object_slug) for one in text.split(","))) for text in texts)


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
    return MatchTerm(fields, form, _least(found["least"], text))


def _value(slug: str, data: Mapping[str, Any]) -> Any:
    return data.get(slug)


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
