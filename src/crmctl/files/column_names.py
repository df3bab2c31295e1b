"""Match column names to attributes, and parse options that apply to single columns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import COMPOSITE_TYPES, type_of
from crmctl.values.composites import CURRENCY_SUFFIX, LIST_SIGNS, Form, fold, known_parts, knows_part, learn_form
from crmctl.values.typed_text import date_directives

RECORD_ID = "id"
RECORD_FIELDS = frozenset({"id", "objectId", "createdAt", "updatedAt"})
"""Fields of a record outside its data. Exports have them as columns."""

LEAST_LIKENESS = 0.7
"""Least similarity of a suggested name."""


class MatchedBy(StrEnum):
    """The way a name matched its attribute, most certain first."""

    SLUG = "slug"
    NAME = "name"
    FOLDED = "folded"


@frozen
class ColumnMatch:
    attribute: Attribute
    part: str | None
    by: MatchedBy


class Names:
    """The names of an object's active attributes, for matching columns."""

    def __init__(self, attributes: Sequence[Attribute], samples: Sequence[Mapping[str, Any]] = ()) -> None:
        """Store the attributes. `samples`, the `data` of existing records, show more parts of values."""
        self._samples = samples
        self.attributes = [attribute for attribute in attributes if attribute.is_active is not False]
        self._slugs = {attribute.slug: attribute for attribute in self.attributes}
        self._folded: dict[str, list[Attribute]] = {}
        for attribute in self.attributes:
            for name in {fold(attribute.slug), fold(attribute.name or attribute.slug)}:
                self._folded.setdefault(name, []).append(attribute)

    @property
    def slugs(self) -> list[str]:
        return list(self._slugs)

    def find(self, name: str) -> ColumnMatch | None:
        """Return the attribute (and part) that a column name matches, or None. Raises UsageError if it matches several."""
        name = name.strip()
        owner = self._attribute(name[:-1].rstrip()) if name not in self._slugs and name[-1:] in LIST_SIGNS else None
        if owner is not None and owner.attribute.holds_items:
            return ColumnMatch(owner.attribute, LIST_SIGNS[name[-1]], owner.by)
        exact = self._attribute(name)
        if exact is not None:
            return exact
        owner = self._attribute(name.removesuffix(CURRENCY_SUFFIX)) if name.endswith(CURRENCY_SUFFIX) else None
        if owner is not None and owner.attribute.type == AttributeType.CURRENCY and not owner.attribute.is_list:
            return ColumnMatch(owner.attribute, "currency", owner.by)
        owner_name, _, part = name.partition(".")
        owner = self._attribute(owner_name)
        if owner is None or not _has_parts(owner.attribute) or not knows_part(owner.attribute, part.strip(), self.form(owner.attribute)):
            return None
        return ColumnMatch(owner.attribute, part.strip(), owner.by)

    def form(self, attribute: Attribute) -> Form:
        """Return the form in which existing records store an attribute."""
        return learn_form(attribute, self._samples)

    def parts_of(self, name: str) -> list[str]:
        """Return the valid parts if `slug.part` names an unknown part. Empty for other names."""
        owner_name, dot, _ = name.strip().partition(".")
        owner = self._attribute(owner_name) if dot else None
        if owner is None or not _has_parts(owner.attribute):
            return []
        return [f"{owner.attribute.slug}.{part}" for part in known_parts(owner.attribute, self.form(owner.attribute))]

    def _attribute(self, name: str) -> ColumnMatch | None:
        if name in self._slugs:
            return ColumnMatch(self._slugs[name], None, MatchedBy.SLUG)
        fitting = self._folded.get(fold(name), [])
        if len(fitting) > 1:
            slugs = ", ".join(attribute.slug for attribute in fitting)
            raise UsageError(
                f"the column {name!r} fits several attributes: {slugs}", hint=f"--map '{name}={fitting[0].slug}'", code="ambiguous_column"
            )
        if not fitting:
            return None
        return ColumnMatch(fitting[0], None, MatchedBy.NAME if fitting[0].name == name else MatchedBy.FOLDED)

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """Return the slugs closest to a name, best first."""
        choices: dict[str, str] = {}
        for attribute in self.attributes:
            choices.setdefault(fold(attribute.slug), attribute.slug)
            choices.setdefault(fold(attribute.name or ""), attribute.slug)
            row = type_of(attribute.type)
            if row.bare:  # a number or an amount says nothing of its owner
                choices.setdefault(fold(attribute.type or ""), attribute.slug)
            for part, others in row.parts.items():
                target = f"{attribute.slug}.{part}"
                alone = () if row.bare else (fold(part), *others)
                for spelling in (*alone, fold(part) + fold(attribute.slug), fold(attribute.slug) + fold(part)):
                    choices.setdefault(spelling, target)
        choices.pop("", None)
        folded = fold(name)
        likeness = {key: _likeness(folded, key) for key in choices}
        near = sorted((key for key in choices if likeness[key] >= LEAST_LIKENESS), key=lambda key: -likeness[key])
        return list(dict.fromkeys(choices[key] for key in near))[:count]


def _likeness(name: str, key: str) -> float:
    """Return how similar two folded names are, up to 1. A name that contains the key, begins it or is most of it, is similar."""
    short, long = sorted((name, key), key=len)
    ratio = difflib.SequenceMatcher(None, name, key).ratio()
    if len(short) <= 3 or short not in long or (2 * len(name) <= len(key) and not key.startswith(name)):
        return ratio
    return max(ratio, LEAST_LIKENESS + 0.2 * len(short) / len(long) + 0.05 * long.startswith(short))


def _has_parts(attribute: Attribute) -> bool:
    return attribute.type in COMPOSITE_TYPES and not attribute.is_list


BLANK_POLICIES = {"skip": "skip", "clear": "clear"}
DECIMAL_MARKS = {",": "comma", "comma": "comma", ".": "point", "point": "point"}


def parse_blanks(texts: Iterable[str]) -> dict[str, str]:
    """Return the policy for blank cells by column ("" for the others). Raises UsageError for anything but skip and clear."""
    return _by_column("--blank", texts, _one_of("--blank", BLANK_POLICIES, "skip or clear"))


def parse_decimal_marks(texts: Iterable[str], *, comma: bool = False) -> dict[str, str]:
    """Return the marks "comma" and "point" by column. Raises UsageError for any other mark.

    With `comma`, the other columns use a comma.
    """
    texts = list(texts)
    return _by_column("--decimal-mark", [*([","] if comma else []), *texts], _one_of("--decimal-mark", DECIMAL_MARKS, "comma or point"))


def parse_date_formats(texts: Iterable[str]) -> dict[str, str]:
    """Return strptime directives by column, from formats such as `%d/%m/%Y` and `DD/MM/YYYY`. Raises UsageError for an incomplete one."""

    def directives(format: str) -> str:
        try:
            return date_directives(format)
        except RejectedError as error:
            raise UsageError(error.message, hint="--date-format %d/%m/%Y, or --date-format 'Birthday=%d/%m/%Y'", code=error.code) from None

    return _by_column("--date-format", texts, directives)


def _one_of(option: str, choices: dict[str, str], words: str) -> Callable[[str], str]:
    example = next(iter(choices.values()))

    def choose(value: str) -> str:
        if value not in choices:
            raise UsageError(
                f"{option} takes {words}, not {value!r}", hint=f"{option} {example}, or for one column: {option} COLUMN={example}"
            )
        return choices[value]

    return choose


def _by_column(option: str, texts: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    choices: dict[str, str] = {}
    for text in texts:
        column, _, value = text.rpartition("=")
        choice = read(value)
        if choices.get(column, choice) != choice:
            raise UsageError(f"{option} says two things of {f'the column {column!r}' if column else 'all columns'}")
        choices[column] = choice
    return choices


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return targets by column from `COLUMN=SLUG` texts. An empty target skips the column.

    A column name may contain `=`, a slug may not.
    """
    mapped: dict[str, str] = {}
    for pair in pairs:
        column, equals, target = pair.rpartition("=")
        if not equals or not column:
            raise UsageError(f"--map takes COLUMN=SLUG, not {pair!r}", hint="for example --map 'Work Email=email'")
        if mapped.get(column, target) != target:
            raise UsageError(f"--map gives two targets for the column {column!r}: {mapped[column]!r} and {target!r}")
        mapped[column] = target.strip()
    return mapped


def parse_replacements(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return values and what replaces them, by column, from `COLUMN:FROM=TO` texts. Raises UsageError for anything else."""
    replacements: dict[str, dict[str, str]] = {}
    for text in texts:
        column, _, pair = text.partition(":")
        before, equals, after = pair.rpartition("=")
        if not (column and equals and before and after):
            raise UsageError(f"--value takes COLUMN:FROM=TO, not {text!r}", hint="for example --value Status:Software=technology")
        of_column = replacements.setdefault(column, {})
        if of_column.setdefault(before, after) != after:
            raise UsageError(f"--value replaces {before!r} of the column {column!r} by {of_column[before]!r} and by {after!r}")
    return replacements


def read_map_file(path: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return targets by column, and values with their replacements by column, of a JSON or YAML file. Raises UsageError.

    An entry is a slug, or an object with `to` and `values`.
    """
    targets: dict[str, str] = {}
    replacements: dict[str, dict[str, str]] = {}
    for column, entry in _map_entries(path):
        target, values = (entry.get("to", column), entry.get("values") or {}) if isinstance(entry, dict) else (entry, {})
        is_map = isinstance(values, dict) and all(isinstance(text, str) and text for pair in values.items() for text in pair)
        if not is_map or (isinstance(entry, dict) and not {*entry} <= {"to", "values"}):
            hint = "Status: {to: status, values: {Software: technology}}"
            raise UsageError(f"{path}: {column!r} is neither a slug nor an object of to and values", hint=hint)
        if not isinstance(column, str) or not (target is None or isinstance(target, str)):
            hint = "both are text; an empty slug leaves the column out"
            raise UsageError(f"{path}: {column!r}: {target!r} is not a column name and a slug", hint=hint)
        targets[column] = (target or "").strip()
        if values:
            replacements[column] = values
    return targets, replacements


def _map_entries(path: Path) -> list[tuple[Any, Any]]:
    from crmctl.values import yaml_text  # imported here because only map files need it

    try:
        text = path.read_text(encoding="utf-8-sig")
        is_json = path.suffix.lower() == ".json" or text.lstrip().startswith("{")
        document = jsontext.loads(text, unique_keys=True) if is_json else yaml_text.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
    except UnicodeError as error:
        raise UsageError(f"{path} is not UTF-8", code="undecodable") from error
    except ValueError as error:
        raise UsageError(f"{path} is neither JSON nor YAML: {reason(error)}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold an object of column names and slugs", hint='for example {"Work Email": "email", "Notes": ""}')
    return list(document.items())
