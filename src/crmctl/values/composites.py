"""Composite values and their parts, the assignments of `--set`, and the columns of records in CSV and Excel.

Money has two columns, other composites one for each part; items of a list are joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import Path, value_at
from crmctl.models.ids import did_you_mean
from crmctl.models.jsontext import Json
from crmctl.models.numbers import check_numbers, read_number
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values import folded_text
from crmctl.values.attribute_types import COMPOSITE_TYPES, PART_NAMES, StoredAttribute, Trait, type_of, typed
from crmctl.values.typed_text import composite_text, is_spreadsheet_number, lost_digits, naming

JOINED_BY: dict[str, str] = {AttributeType.NAME: " ", AttributeType.ADDRESS: ", "}

CURRENCY_SUFFIX = "_currency"
"""`amount_currency` is the column for the currency of `amount`."""

SEPARATOR = ";"
"""Separates the items of a list in a text."""

SHOWN_TEXT = 60

Parts = Mapping[str, Any]
"""New parts of one value by their names; None clears a part."""

ADDED, REMOVED = "added", "removed"
LIST_SIGNS = {"+": ADDED, "-": REMOVED}
"""The items that `tags+=` adds to a list and `tags-=` removes count as parts of its value."""

NO_PARTS: Mapping[str, Parts] = MappingProxyType({})
"""No attribute changes by parts."""


@frozen
class Form:
    """Form in which existing records hold an attribute: as plain texts or numbers (`plain`), as objects with these `keys`, or both.
    With neither it is unknown."""

    plain: bool = False
    keys: tuple[str, ...] = ()


def fold(text: str) -> str:
    """Return a name without case, composition, spaces, underscores and hyphens, for comparison."""
    return "".join(character for character in folded_text.fold(text) if character not in " _-\u00a0\t")


def learn_form(attribute: Attribute, samples: Sequence[Mapping[str, Any]]) -> Form:
    """Return the form in which `samples` (the `data` of existing records) hold the attribute."""
    values = [value for sample in samples if (value := sample.get(attribute.slug)) not in (None, "", [], {})]
    keys = tuple(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))
    return Form(plain=any(not isinstance(value, dict) for value in values), keys=keys)


@lru_cache(maxsize=1_000)
def usual_part(kind: str, part: str) -> str | None:
    """Return the usual name of a part in values of a type; None for an unknown one."""
    folded = fold(part)
    return next((usual for usual, others in PART_NAMES.get(kind, {}).items() if folded == fold(usual) or folded in others), None)


def usual_name(attribute: Attribute | StoredAttribute, part: str) -> str | None:
    return usual_part(attribute.type or "", part)


def part_name(attribute: Attribute, part: str, form: Form) -> str:
    """Return the part's name on the wire: as existing records spell it, else the usual spelling of a known part, else `part`."""
    usual = usual_name(attribute, part)
    spellings = {fold(part)} | ({fold(usual), *PART_NAMES[attribute.type or ""][usual]} if usual is not None else set())
    for key in form.keys:
        if fold(key) in spellings:
            return key
    if usual is not None and fold(part) == fold(usual):
        return usual
    return part


def lacks_part(attribute: Attribute, parts: Parts, value: Any) -> bool:
    """Whether the value is an object without one of these parts, so that other records must show its name."""
    return isinstance(value, dict) and any(part_name(attribute, part, Form(keys=(*value,))) not in value for part in parts)


def knows_part(attribute: Attribute, part: str, form: Form) -> bool:
    """Whether values of the attribute have the part: a usual one, or one in existing records."""
    return usual_name(attribute, part) is not None or fold(part) in map(fold, form.keys)


def known_parts(attribute: Attribute, form: Form) -> list[str]:
    """Return the parts of the attribute: the usual ones and those in existing records."""
    return list(dict.fromkeys((*PART_NAMES.get(attribute.type or "", {}), *form.keys)))


def unknown_part(attribute: Attribute, part: str, form: Form) -> UsageError:
    """Return the error for a part that values of the attribute do not have."""
    parts = known_parts(attribute, form)
    named = f"{attribute.slug} has no part {part!r}" if part else f"{attribute.slug}. names no part"
    return UsageError(named, hint=f"its parts are: {', '.join(f'{attribute.slug}.{name}' for name in parts)}", code="unknown_part")


def compose(attribute: Attribute, parts: Parts, form: Form) -> Any:
    """Return a value from its parts: an object, or a string in the usual order if existing records hold only plain text."""
    separator = JOINED_BY.get(attribute.type or "")
    if not form.plain or form.keys or separator is None:
        return dict(parts)
    rank = {name: place for place, name in enumerate(PART_NAMES[attribute.type or ""])}
    ranked = sorted(parts, key=lambda part: rank.get(usual_name(attribute, part) or "", len(rank)))
    return separator.join(str(parts[part]) for part in ranked if parts[part] not in (None, ""))


def is_bare_amount(attribute: Attribute, value: Any) -> bool:
    """Whether a value is money without a currency."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return attribute.type == AttributeType.CURRENCY and not attribute.is_list and is_number


def currency_code(text: str | None) -> str | None:
    """Return the wire form of a currency code. Raises UsageError for anything but three letters."""
    if text is None or (len(text) == 3 and text.isascii() and text.isalpha()):
        return None if text is None else text.upper()
    raise UsageError(f"--currency takes a code of three letters, not {text!r}", hint="for example --currency EUR")


@frozen
class Merger:
    """Changes parts of values and keeps the others. `forms` are those of existing records by slug; `currency` belongs to bare amounts
    if the record has no currency."""

    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    forms: Mapping[str, Form] = field(default_factory=dict)
    currency: str | None = None

    def form(self, slug: str) -> Form:
        return self.forms.get(slug, Form())

    def merge_all(self, said: Mapping[str, Parts], current: Mapping[str, Any]) -> Json:
        """Return the whole values, by slug, of attributes that change by parts. Raises RejectedError, which names the attribute."""
        return {slug: self.merge(slug, parts, current.get(slug)) for slug, parts in said.items()}

    def merge(self, slug: str, parts: Parts, current: Any) -> Any:
        """Return a value with some parts changed; None if it is empty then. Raises RejectedError for a value without parts, and for money
        with an unknown currency."""
        attribute, form = self.attributes[slug], self.form(slug)
        if attribute.holds_items and {*parts} <= {ADDED, REMOVED}:
            return _with_items(attribute, parts, current)
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
            if form.plain or not form.keys:
                return amount
            if any(usual_name(attribute, key) == "currency" for key in form.keys):
                raise RejectedError(
                    f"{attribute.slug}: an amount without a currency, and records here have one",
                    hint="say it in the value, 12.50 EUR, or for all of them with --currency EUR",
                    code="missing_currency",
                )
        return compose(attribute, {part_name(attribute, part, form): value for part, value in parts.items()}, form)

    def _money(self, attribute: Attribute, parts: Parts, current: Any) -> tuple[Any, Parts]:
        """Return current money as an object if necessary, and add the currency of `--currency`."""
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
        """Return the replacement of a value without parts: possible only if every part is given or nothing changes.

        A single part never replaces a text, even if existing records show no other part.
        """
        usual = _usual(attribute, parts)
        if attribute.type == AttributeType.CURRENCY and list(usual) == ["amount"] and not isinstance(current, str):
            return usual["amount"]
        new = compose(attribute, {part_name(attribute, part, form): value for part, value in parts.items() if value is not None}, form)
        plain = compose(attribute, usual, Form(plain=True))
        names = PART_NAMES.get(attribute.type or "", {})
        every = {usual_name(attribute, key) or fold(key) for key in form.keys if len(form.keys) > 1} or {*names}
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


def _with_items(attribute: Attribute, parts: Parts, current: Any) -> Any:
    """Return a list with items added and removed; None if it is empty then. Raises RejectedError for a value that is no list."""
    if not isinstance(current, list | None) and current not in ("", {}):
        raise RejectedError(
            f"{attribute.slug} is one value, {str(current)[:SHOWN_TEXT]!r}, so nothing can be added to it or removed from it",
            hint=f"give the whole of it as {attribute.slug}",
            code="text_without_parts",
        )
    items = [item for item in current or () if item not in (parts.get(REMOVED) or ())]
    for item in parts.get(ADDED) or ():
        if item not in items:
            items.append(item)
    return items or None


def _usual(attribute: Attribute, parts: Parts) -> Json:
    return {usual_name(attribute, part) or fold(part): value for part, value in parts.items()}


def reshape_money(attribute: Attribute, value: Any, form: Form) -> Any:
    """Return an `{amount, currency}` with the key names of existing records."""
    if not isinstance(value, dict) or value.keys() != {"amount", "currency"}:
        return value
    return {part_name(attribute, part, form): value[part] for part in ("amount", "currency")}


def compose_phone(attribute: Attribute, number: str, extension: str | None, form: Form) -> Any:
    """Return a number in E.164, with `;ext=` before an extension, or as an object if existing records hold objects.

    Other keys of such objects, a country for example, are left out: crmctl does not know how the service spells them.
    """
    names = {part: part_name(attribute, part, form) for part in ("number", "extension")}
    in_full = f"{number};ext={extension}" if extension else number
    if names["number"] not in form.keys:
        return in_full
    if extension and names["extension"] in form.keys:
        return {names["number"]: number, names["extension"]: extension}
    return {names["number"]: in_full}


FormOf = Callable[[Attribute], Form]
"""Return the form in which existing records hold an attribute."""


class Given(NamedTuple):
    """Assigned values of a record: whole values by slug, and parts of other attributes. Values of `as_written` were given as JSON."""

    data: Json
    parts: dict[str, Json]
    as_written: frozenset[str] = frozenset()

    @property
    def fields(self) -> Json:
        """All values as a new record would have them."""
        return self.data | {slug: parts.get(ADDED) if {*parts} & {ADDED, REMOVED} else dict(parts) for slug, parts in self.parts.items()}


def parse_assignments(assignments: Iterable[str], attributes: Sequence[Attribute], form_of: FormOf = lambda _: Form()) -> Given:
    """Read assignments. `form_of` is called only for unusual parts.

    Raises UsageError for a malformed or repeated assignment and for an unknown slug or part, RejectedError for a value that does not fit.
    """
    data: Json = {}
    parts: dict[str, Json] = {}
    as_written: set[str] = set()
    by_slug = {attribute.slug: attribute for attribute in attributes}
    for assignment in assignments:
        before, equals, value = assignment.partition("=")
        is_json, target = before.endswith(":"), before.removesuffix(":").strip()
        if not equals or not target:
            examples = "for example --set name.first=Ada, --set amount=12.5, --set tags:='[\"a\"]'"
            raise UsageError(f"--set takes slug=value, not {assignment!r}", hint=examples)
        if target[-1] in LIST_SIGNS and target not in by_slug:
            _change_items(target, _assigned_json(target, value) if is_json else value, by_slug, Given(data, parts))
            if is_json:
                as_written.add(target[:-1].strip())
            continue
        slug, dot, rest = target.partition(".")
        slug, part = (target, None) if target in by_slug or not dot else (slug, rest)
        attribute = by_slug.get(slug)
        if attribute is None:
            raise _unknown_slug(slug, by_slug)
        if part is not None:
            _check_part(attribute, part, target, form_of)
        if is_json:
            wire = _assigned_json(target, value)
        elif part is None:
            wire = typed(value, attribute) if value else None
        else:
            with naming(target, value):
                wire = part_value(attribute, part, value) if value else None
        if slug in data or (
            slug in parts and (part is None or (usual_name(attribute, part) or fold(part)) in _usual(attribute, parts[slug]))
        ):
            raise UsageError(f"{target} is set twice", hint="give each slug once, either whole or by its parts")
        if part is not None:
            parts.setdefault(slug, {})[part] = wire
            continue
        data[slug] = wire
        if is_json:
            as_written.add(slug)
    return Given(data, parts, frozenset(as_written))


def _change_items(target: str, value: Any, by_slug: Mapping[str, Attribute], assigned: Given) -> None:
    """Add the items of `tags+=vip` or `tags-=old` to the given parts. Raises UsageError, and RejectedError for an unfit value."""
    slug, sign = target[:-1].strip(), target[-1]
    attribute = by_slug.get(slug)
    if attribute is None:
        raise _unknown_slug(slug, by_slug)
    if not attribute.holds_items:
        raise UsageError(f"{slug} holds one value, not a list, so {target}= means nothing", hint=f"--set {slug}=VALUE")
    if slug in assigned.data:
        raise UsageError(f"{slug} is set twice", hint=f"either --set {slug}=VALUE or {slug}+= and {slug}-=")
    items = typed(value, attribute) if isinstance(value, str) else value
    if not items or not isinstance(items, list):
        raise UsageError(f"--set {target}= names no items", hint=f"for example --set {target}=vip")
    assigned.parts.setdefault(slug, {}).setdefault(LIST_SIGNS[sign], []).extend(items)


def without_bare_amounts(assigned: Given, attributes: Iterable[Attribute]) -> Given:
    """Return the assignments with money that lacks a currency as a part of its value, unless it is to be sent as written."""
    bare = [
        attribute.slug
        for attribute in attributes
        if attribute.slug not in assigned.as_written and is_bare_amount(attribute, assigned.data.get(attribute.slug))
    ]
    amounts = {slug: {"amount": assigned.data[slug]} for slug in bare}
    return Given({slug: value for slug, value in assigned.data.items() if slug not in amounts}, assigned.parts | amounts)


def _check_part(attribute: Attribute, part: str, target: str, form_of: FormOf) -> None:
    if attribute.type not in COMPOSITE_TYPES:
        raise UsageError(
            f"{attribute.slug} is a {attribute.type} attribute and has no parts, so {target} means nothing",
            hint=f"--set {attribute.slug}=VALUE",
        )
    if attribute.is_list:
        raise UsageError(f"{attribute.slug} holds a list of values, so {target} means nothing", hint=f"--set {attribute.slug}:=JSON")
    if not knows_part(attribute, part, Form()) and not knows_part(attribute, part, form := form_of(attribute)):
        raise unknown_part(attribute, part, form)


def part_value(attribute: Attribute, part: str, text: str) -> Any:
    """Return the wire value of one part of a composite: text, except the amount of money."""
    if attribute.type == AttributeType.CURRENCY and (usual := usual_name(attribute, part)) is not None:
        if usual == "amount":
            return read_number(text)
        if not text or text.strip():
            return text.strip()
        raise RejectedError("no currency", hint="for example EUR", code="missing_currency")
    if attribute.type == AttributeType.PHONE_NUMBER and is_spreadsheet_number(text.strip()):
        raise lost_digits()
    return text


def _assigned_json(target: str, text: str) -> Any:
    try:
        value = jsontext.loads(text, unique_keys=True)
    except ValueError as error:
        raise UsageError(f"{target}:= takes JSON: {reason(error)}", hint=f"--set {target}=VALUE takes plain text") from None
    check_fields({target: value})
    return value


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises RejectedError, which names the field, for a number that cannot be sent."""
    for name, value in fields.items():
        with naming(name):
            check_numbers(value)


def _unknown_slug(slug: str, valid_slugs: Iterable[str]) -> UsageError:
    slugs = sorted(valid_slugs)
    hint = f"{did_you_mean(slug, slugs)} the attributes are: {', '.join(slugs)}".strip()
    return UsageError(f"there is no attribute {slug}", hint=hint, code="unknown_attribute")


_CODE = re.compile("[A-Z]{3}")


@frozen
class AttributeColumns:
    """The columns of one attribute: its own, unless no value needs it, and one for each of `parts`.

    A value that would not come back from its parts stays whole in the attribute's own column.
    """

    attribute: Attribute
    parts: Sequence[str] = ()
    has_own: bool = True

    @property
    def is_money(self) -> bool:
        return self.attribute.type == AttributeType.CURRENCY and bool(self.parts)

    @property
    def names(self) -> list[str]:
        slug = self.attribute.slug
        if self.is_money:
            return [slug, slug + CURRENCY_SUFFIX]
        return [*([slug] if self.has_own else []), *(f"{slug}.{part}" for part in self.parts)]

    def cells(self, value: Any) -> list[Any]:
        """Return the cells of a value, in the order of `names`."""
        if self.is_money:
            return _amount_and_currency(self.attribute, value) or [value, None]
        if self.parts and _has_plain_parts(self.attribute, value) and {*value} <= {*self.parts}:
            return [*([None] if self.has_own else []), *(value.get(part) for part in self.parts)]
        if isinstance(value, str) and self.attribute.type in COMPOSITE_TYPES and Trait.KEEPS_BLANKS in type_of(self.attribute.type).traits:
            value = composite_text(value)
        own = [_joined(value) if self.attribute.holds_items else value] if self.has_own else []
        return [*own, *[None] * len(self.parts)]


@frozen
class RecordColumns:
    """The columns of records: one for each place, by name, or those of its attribute in `spread`, by slug."""

    places: Mapping[str, Path]
    spread: Mapping[str, AttributeColumns]

    def of(self, path: Path) -> AttributeColumns | None:
        return self.spread.get(path[1]) if len(path) == 2 and path[0] == "data" else None

    @property
    def names(self) -> list[str]:
        columns = ((name, self.of(path)) for name, path in self.places.items())
        return [column for name, spread in columns for column in (spread.names if spread else [name])]

    def cells(self, record: Mapping[str, Any]) -> list[Any]:
        values: list[Any] = []
        for path in self.places.values():
            value, spread = value_at(record, path), self.of(path)
            values += spread.cells(value) if spread else [value]
        return values


def attribute_columns(
    attributes: Iterable[Attribute], samples: Iterable[Mapping[str, Any]], *, are_all: bool = False, is_spread: bool = True
) -> dict[str, AttributeColumns]:
    """Return the columns of composites and lists, by slug. Parts have the names that `samples`, the `data` of records, show.

    With `are_all` the samples are all records: an attribute then has no column of its own if its parts hold every value. Without
    `is_spread` composites have one column of JSON or text.
    """
    if not is_spread:
        return {
            attribute.slug: AttributeColumns(attribute)
            for attribute in attributes
            if attribute.type in COMPOSITE_TYPES and not attribute.is_list
        }
    by_slug = {attribute.slug: attribute for attribute in attributes}
    spread = {slug: attribute for slug, attribute in by_slug.items() if attribute.type in COMPOSITE_TYPES and not attribute.is_list}
    money = {
        slug for slug, attribute in spread.items() if attribute.type == AttributeType.CURRENCY and slug + CURRENCY_SUFFIX not in by_slug
    }
    columns = {
        slug: AttributeColumns(attribute, ("amount", "currency") if slug in money else ())
        for slug, attribute in by_slug.items()
        if attribute.holds_items or slug in spread
    }
    keys: dict[str, set[str]] = {slug: set() for slug, attribute in spread.items() if attribute.type != AttributeType.CURRENCY}
    unspread = set()
    for data in samples:
        for slug, names in keys.items():
            value = data.get(slug)
            if isinstance(value, Mapping) and _has_plain_parts(spread[slug], value):
                names.update(value)
            elif value is not None:
                unspread.add(slug)
    for slug, names in keys.items():
        usual = list(PART_NAMES[spread[slug].type or ""])
        parts = sorted(names, key=lambda name: (usual.index(usual_name(spread[slug], name) or ""), name))
        columns[slug] = AttributeColumns(spread[slug], parts, has_own=not are_all or slug in unspread or not parts)
    return columns


def _amount_and_currency(attribute: Attribute, value: Any) -> list[Any] | None:
    """Return amount and currency; None if the value holds anything else."""
    if not isinstance(value, Mapping) or len(value) != 2:
        return None
    by_name = {usual_name(attribute, key): part for key, part in value.items()}
    amount, currency = by_name.get("amount"), by_name.get("currency")
    is_number = isinstance(amount, int | float | Decimal) and not isinstance(amount, bool)
    return [amount, currency] if is_number and isinstance(currency, str) and _CODE.fullmatch(currency) else None


def _has_plain_parts(attribute: Attribute, value: Any) -> bool:
    """Whether a value is an object of texts under different known names."""
    if not isinstance(value, Mapping):
        return False
    names = [usual_name(attribute, key) for key in value]
    texts = [part for part in value.values() if part is not None]
    is_plain = bool(texts) and all(isinstance(part, str) and part.strip() for part in texts)
    return is_plain and None not in names and len({*names}) == len(names)


def _joined(value: Any) -> Any:
    """Return the items of a list of plain texts as one text; any other value as it is."""
    if not isinstance(value, list) or not value:
        return value
    is_plain = all(isinstance(item, str) and item and item == item.strip() and SEPARATOR not in item for item in value)
    return SEPARATOR.join(value) if is_plain and not any(item.startswith(("{", "[", '"')) for item in value) else value
