"""The parts of composite values (name, address, currency, phone): how they are called, how they make a value, how they change one.

The specification leaves their shape open: it follows what existing records show, and a documented default otherwise: parts make an object,
one cell stays one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from crmctl.errors import RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.part_names import PART_NAMES

JOINED_BY: dict[str, str] = {AttributeType.NAME: " ", AttributeType.ADDRESS: ", "}

COMPOSITE_TYPES = types_with(Trait.HAS_PARTS)

SHOWN_TEXT = 60

Parts = Mapping[str, Any]
"""What is said of the parts of one value, by their names: None clears one."""

NO_PARTS: Mapping[str, Parts] = MappingProxyType({})
"""By slug: every value is said whole."""


@dataclass(frozen=True)
class Form:
    """How existing records hold one attribute: as plain texts or numbers (`plain`), as objects with these `keys`, or some in either way.
    With neither it is not known."""

    plain: bool = False
    keys: tuple[str, ...] = ()


def fold(text: str) -> str:
    """A name without case, spaces, underscores and hyphens, for comparison only."""
    return "".join(character for character in text.casefold() if character not in " _-\u00a0\t")


def learn_form(attribute: Attribute, samples: Sequence[Mapping[str, Any]]) -> Form:
    """The form in which `samples` (the `data` of existing records) hold the attribute."""
    values = [value for sample in samples if (value := sample.get(attribute.slug)) not in (None, "", [], {})]
    keys = tuple(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))
    return Form(plain=any(not isinstance(value, dict) for value in values), keys=keys)


def usual_name(attribute: Attribute, part: str) -> str | None:
    """What a part is usually called; None for one that is not known."""
    folded = fold(part)
    for usual, others in PART_NAMES.get(attribute.type or "", {}).items():
        if folded == fold(usual) or folded in others:
            return usual
    return None


def part_name(attribute: Attribute, part: str, form: Form) -> str:
    """The part's name as it is sent: as existing records spell it, else the usual spelling of a known part, else as given."""
    usual = usual_name(attribute, part)
    wanted = {fold(part)} | ({fold(usual), *PART_NAMES[attribute.type or ""][usual]} if usual is not None else set())
    for key in form.keys:
        if fold(key) in wanted:
            return key
    if usual is not None and fold(part) == fold(usual):
        return usual
    return part


def knows_part(attribute: Attribute, part: str, form: Form) -> bool:
    """Whether values of the attribute have such a part: a usual one, or one that existing records show."""
    return usual_name(attribute, part) is not None or fold(part) in map(fold, form.keys)


def known_parts(attribute: Attribute, form: Form) -> list[str]:
    """The parts that values of the attribute have: the usual ones, and those that existing records show."""
    return list(dict.fromkeys((*PART_NAMES.get(attribute.type or "", {}), *form.keys)))


def unknown_part(attribute: Attribute, part: str, form: Form) -> UsageError:
    """The error for a part that values of the attribute do not have."""
    known = known_parts(attribute, form)
    named = f"{attribute.slug} has no part {part!r}" if part else f"{attribute.slug}. names no part"
    return UsageError(named, hint=f"its parts are: {', '.join(f'{attribute.slug}.{name}' for name in known)}", code="unknown_part")


def compose(attribute: Attribute, parts: Parts, form: Form) -> Any:
    """One value from its parts: an object, or a string joined in the usual order where existing records hold plain text only."""
    separator = JOINED_BY.get(attribute.type or "")
    if not form.plain or form.keys or separator is None:
        return dict(parts)
    rank = {name: place for place, name in enumerate(PART_NAMES[attribute.type or ""])}
    ranked = sorted(parts, key=lambda part: rank.get(usual_name(attribute, part) or "", len(rank)))
    return separator.join(str(parts[part]) for part in ranked if parts[part] not in (None, ""))


def is_bare_amount(attribute: Attribute, value: Any) -> bool:
    """Whether a value is money that says nothing of its currency."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return attribute.type == AttributeType.CURRENCY and not attribute.is_list and is_number


def currency_code(text: str | None) -> str | None:
    """The code of a currency as it is sent. Raises UsageError for anything but three letters."""
    if text is None or (len(text) == 3 and text.isascii() and text.isalpha()):
        return None if text is None else text.upper()
    raise UsageError(f"--currency takes a code of three letters, not {text!r}", hint="for example --currency EUR")


@dataclass(frozen=True)
class Merger:
    """Changes parts of values and leaves the others as they are: `forms` are those of existing records by slug, `currency` is that of bare
    amounts where the record has none."""

    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    forms: Mapping[str, Form] = field(default_factory=dict)
    currency: str | None = None

    def form(self, slug: str) -> Form:
        return self.forms.get(slug, Form())

    def merge_all(self, said: Mapping[str, Parts], current: Mapping[str, Any]) -> dict[str, Any]:
        """The whole values, by slug, of attributes of which parts are said. Raises RejectedError, which names the attribute."""
        return {slug: self.merge(slug, parts, current.get(slug)) for slug, parts in said.items()}

    def merge(self, slug: str, parts: Parts, current: Any) -> Any:
        """A value with some parts of it changed; None where nothing is left. Raises RejectedError for a value without parts, and for money
        whose currency nobody tells."""
        attribute, form = self.attributes[slug], self.form(slug)
        if attribute.type == AttributeType.CURRENCY:
            current, parts = self._money(attribute, parts, current)
        if current in (None, "", [], {}):
            return self._new(attribute, parts, form)
        if not isinstance(current, dict):
            return self._replaced(attribute, parts, current, form)
        merged, form = dict(current), Form(keys=(*current, *form.keys))
        for part, value in parts.items():
            name = part_name(attribute, part, form)
            if value is not None or name in merged:
                merged[name] = value
        return merged if any(value not in (None, "") for value in merged.values()) else None

    def _new(self, attribute: Attribute, parts: Parts, form: Form) -> Any:
        if all(value is None for value in parts.values()):
            return None
        if attribute.type == AttributeType.CURRENCY and list(_usual(attribute, parts)) == ["amount"]:
            (amount,) = parts.values()
            if not self._is_money_object(attribute):
                return amount
            if form.keys and any(usual_name(attribute, key) == "currency" for key in form.keys):
                raise RejectedError(
                    f"{attribute.slug}: an amount without a currency, and records here have one",
                    hint="say it in the value, 12.50 EUR, or for all of them with --currency EUR",
                    code="missing_currency",
                )
        return compose(attribute, {part_name(attribute, part, form): value for part, value in parts.items()}, form)

    def _is_money_object(self, attribute: Attribute) -> bool:
        form = self.form(attribute.slug)
        return bool(form.keys) and not form.plain

    def _money(self, attribute: Attribute, parts: Parts, current: Any) -> tuple[Any, Parts]:
        """Current money as an object where that is needed, and its currency where only `--currency` says it."""
        usual = _usual(attribute, parts)
        has_currency = isinstance(current, dict) and any(
            usual_name(attribute, name) == "currency" and value not in (None, "") for name, value in current.items()
        )
        if self.currency is not None and not has_currency and "currency" not in usual and usual.get("amount") is not None:
            parts = {**parts, "currency": self.currency}
        if not isinstance(current, dict) and current not in (None, "") and "currency" in _usual(attribute, parts):
            current = {part_name(attribute, "amount", self.form(attribute.slug)): current}
        return current, parts

    def _replaced(self, attribute: Attribute, parts: Parts, current: Any, form: Form) -> Any:
        """A value in the place of one that has no parts: only where every part is said, or nothing changes."""
        usual = _usual(attribute, parts)
        if attribute.type == AttributeType.CURRENCY and list(usual) == ["amount"] and not isinstance(current, str):
            return usual["amount"]
        new = compose(attribute, {part: value for part, value in parts.items() if value is not None}, form)
        plain = compose(attribute, usual, Form(plain=True))
        every = {usual_name(attribute, key) or fold(key) for key in form.keys or PART_NAMES.get(attribute.type or "", {})}
        if plain == current:
            return current
        if every <= usual.keys():
            return new
        shown = current if isinstance(current, str) else jsontext.dumps(current)
        kind = "text" if isinstance(current, str) else "list" if isinstance(current, list) else "value"
        raise RejectedError(
            f"{attribute.slug} is one {kind}, {shown[:SHOWN_TEXT]!r}, so no part of it can be changed",
            hint=f"give all its parts ({', '.join(sorted(every))}), or the whole of it as {attribute.slug}",
            code="text_without_parts",
        )


def _usual(attribute: Attribute, parts: Parts) -> dict[str, Any]:
    return {usual_name(attribute, part) or fold(part): value for part, value in parts.items()}


def same_part(attribute: Attribute, part: str, others: Iterable[str]) -> bool:
    """Whether a part is among others, however they are spelled."""
    return (usual_name(attribute, part) or fold(part)) in {usual_name(attribute, other) or fold(other) for other in others}


def reshape_money(attribute: Attribute, value: Any, form: Form) -> Any:
    """An `{amount, currency}` of ours with the key names of existing records."""
    if not isinstance(value, dict) or value.keys() != {"amount", "currency"}:
        return value
    return {part_name(attribute, part, form): value[part] for part in ("amount", "currency")}


def compose_phone(attribute: Attribute, number: str, extension: str | None, form: Form) -> Any:
    """A number in E.164, with `;ext=` where it has an extension, or as the number, and extension, of an object where records hold objects.

    The other keys of such objects, a country for example, are left out: how they are spelled is for the service to know.
    """
    names = {part: part_name(attribute, part, form) for part in ("number", "extension")}
    in_full = f"{number};ext={extension}" if extension else number
    if names["number"] not in form.keys:
        return in_full
    if extension and names["extension"] in form.keys:
        return {names["number"]: number, names["extension"]: extension}
    return {names["number"]: in_full}
