"""Fields a person gives one by one: `slug=value`, `slug.part=value`, `slug=` and `slug:=JSON`, as `--set` takes them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from crmctl.errors import UsageError, reason
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import COMPOSITE_TYPES, Form, is_bare_amount, knows_part, same_part, unknown_part, usual_name
from crmctl.models.nearest import did_you_mean
from crmctl.models.numbers import check_numbers, read_number
from crmctl.models.typed_text import is_spreadsheet_number, lost_digits, naming, typed

FormOf = Callable[[Attribute], Form]
"""The form in which existing records hold an attribute."""


class Given(NamedTuple):
    """What is said of a record: whole values by slug, and of other attributes some parts."""

    data: dict[str, Any]
    parts: dict[str, dict[str, Any]]

    @property
    def fields(self) -> dict[str, Any]:
        """All of it as a new record would have it, where nothing is known of others."""
        return self.data | {slug: dict(parts) for slug, parts in self.parts.items()}


def parse_assignments(assignments: Iterable[str], attributes: Sequence[Attribute], form_of: FormOf = lambda _: Form()) -> Given:
    """What assignments say; `form_of` is asked only about parts that are none of the usual ones.

    Raises UsageError for a malformed assignment, an unknown slug or part, or one given twice; RejectedError for a value that does not fit.
    """
    data: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    known = {attribute.slug: attribute for attribute in attributes}
    for assignment in assignments:
        target, value, is_json = _split_assignment(assignment)
        slug, part = split_target(target, known)
        attribute = known.get(slug)
        if attribute is None:
            raise _unknown_slug(slug, known)
        if part is not None:
            _check_part(attribute, part, target, form_of)
        if is_json:
            wire = _assigned_json(target, value)
        elif part is None:
            wire = typed(value, attribute) if value else None
        else:
            with naming(target):
                wire = part_value(attribute, part, value) if value else None
        if slug in data or (slug in parts and (part is None or same_part(attribute, part, parts[slug]))):
            raise UsageError(f"{target} is set twice", hint="give each slug once, either whole or by its parts")
        if part is None:
            data[slug] = wire
        else:
            parts.setdefault(slug, {})[part] = wire
    return Given(data, parts)


def without_bare_amounts(given: Given, attributes: Iterable[Attribute]) -> Given:
    """Money without a currency as what it is: a part of a value."""
    bare = [attribute.slug for attribute in attributes if is_bare_amount(attribute, given.data.get(attribute.slug))]
    amounts = {slug: {"amount": given.data[slug]} for slug in bare}
    return Given({slug: value for slug, value in given.data.items() if slug not in amounts}, given.parts | amounts)


def split_target(target: str, known: Container[str]) -> tuple[str, str | None]:
    """Slug and part of `slug.part`; a slug that itself holds a dot stays whole."""
    slug, dot, part = target.partition(".")
    return (target, None) if target in known or not dot else (slug, part)


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
    """The wire value of one part of a composite: text, except the amount of money."""
    if attribute.type == AttributeType.CURRENCY and usual_name(attribute, part) == "amount":
        return read_number(text)
    if attribute.type == AttributeType.PHONE_NUMBER and is_spreadsheet_number(text.strip()):
        raise lost_digits()
    return text


def _split_assignment(assignment: str) -> tuple[str, str, bool]:
    left, equals, value = assignment.partition("=")
    is_json = left.endswith(":")
    target = left.removesuffix(":").strip()
    if not equals or not target:
        raise UsageError(
            f"--set takes slug=value, not {assignment!r}", hint="for example --set name.first=Ada, --set amount=12.5, --set tags:='[\"a\"]'"
        )
    return target, value, is_json


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


def _unknown_slug(slug: str, known: Iterable[str]) -> UsageError:
    slugs = sorted(known)
    hint = f"{did_you_mean(slug, slugs)} the attributes are: {', '.join(slugs)}".strip()
    return UsageError(f"there is no attribute {slug}", hint=hint, code="unknown_attribute")
