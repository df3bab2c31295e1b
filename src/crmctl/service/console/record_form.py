"""The form of a record, and its values as text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crmctl.errors import RejectedError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType
from crmctl.service.console.conditions_form import ungrouped
from crmctl.values.attribute_types import PART_NAMES, reader

USUAL_PARTS = {
    AttributeType.NAME: ("first", "last"),
    AttributeType.ADDRESS: ("street", "street2", "city", "state", "postalCode", "country"),
}
"""The parts that a form shows for an empty value. A value may have more."""

PART_LABELS = {"first": "First name", "last": "Last name", "middle": "Middle name", "street2": "Second line", "postalCode": "Postal code"}
_KINDS = {AttributeType.EMAIL: "email", AttributeType.PHONE_NUMBER: "tel", AttributeType.REFERENCE: "reference"}
_LONG = 80


def part_attributes(described: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the parts of composite attributes as text attributes, `Address: City` with the slug `address.city`."""
    return [
        {
            "slug": f"{attribute['slug']}.{part}",
            "name": f"{attribute['name']}: {part_label(part)}",
            "type": AttributeType.TEXT,
            "config": None,
        }
        for attribute in described
        if not attribute["isList"]
        for part in USUAL_PARTS.get(attribute["type"], ())
    ]


def part_label(part: str) -> str:
    return PART_LABELS.get(part, part[:1].upper() + part[1:])


@frozen
class Input:
    """One input of the form, with the text of the stored value, and the text that it shows, by default the same.

    `kind` names its widget; `hint` tells what an empty one means; `was` is the text someone else saved; `choices` are records.
    """

    name: str
    label: str
    stored: str
    kind: str = "text"
    options: tuple[str, ...] = ()
    hint: str = ""
    typed: str | None = None
    was: str | None = None
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return self.stored if self.typed is None else self.typed

    def sent(self, form: Mapping[str, Sequence[str]]) -> Input:
        """Return the input as the visitor filled it in. One that is missing from the form keeps its text."""
        if not (values := form.get(self.name)):
            return self
        text = values[0].replace("\r\n", "\n").replace("\r", "\n")
        # Browsers strip line ends from one-line fields, and people do not see blanks at the ends: neither counts as a change.
        seen = self.stored if self.kind in ("textarea", "lines", "json") else self.stored.replace("\n", "")
        return self if self.kind != "textarea" and text.strip() == seen.strip() else replace(self, typed=text)


@frozen
class FormField:
    """One attribute in wire form with its stored value, inputs and problem."""

    attribute: Mapping[str, Any]
    value: Any
    inputs: tuple[Input, ...]
    problem: str = ""
    other: tuple[str, str] | None = None
    """Path and label of the record that already has this unique value."""

    @property
    def slug(self) -> str:
        return str(self.attribute["slug"])

    @property
    def hint(self) -> str:
        return _HINTS.get(self.inputs[0].kind, "")

    def target(self, slugs: Mapping[str, str]) -> str:
        """Return the slug of the object whose records the field may name; `slugs` are those of the objects by id."""
        config = self.attribute["config"] if self.inputs[0].kind == "reference" else None
        return slugs.get((config or {}).get("allowed_object_id", ""), "")


_HINTS = {"lines": "One per line.", "json": "As JSON.", "reference": "Type a part of the name, or an id."}


def fields_for(attributes: Sequence[Mapping[str, Any]], data: Mapping[str, Any], labels: Mapping[str, str]) -> list[FormField]:
    """Return the form for stored data. `labels` are the names of linked records by id."""
    values = [(attribute, data.get(attribute["slug"])) for attribute in attributes]
    return [FormField(attribute, value, tuple(_inputs(attribute, value, labels))) for attribute, value in values]


def submitted(fields: Sequence[FormField], form: Mapping[str, Sequence[str]]) -> list[FormField]:
    """Return the form as the visitor filled it in."""
    return [replace(field, inputs=tuple(box.sent(form) for box in field.inputs)) for field in fields]


def changes(fields: Sequence[FormField], is_free: Callable[[str], bool] = lambda _: False) -> tuple[Json, dict[str, str]]:
    """Return the data of the changed attributes, and the problems by slug. References stay as typed.

    `is_free` tells which texts to take unconverted.
    """
    written: Json = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            if texts := {_part(box.name): box.text for box in field.inputs if box.text != box.stored}:
                written[field.slug] = _read(field, texts, is_free)
        except (RejectedError, ValueError) as error:
            problems[field.slug] = error.message if isinstance(error, RejectedError) else str(error)
    return written, problems


def fingerprints(fields: Sequence[FormField]) -> str:
    """Return a short hash of each stored text. The form sends them back, so that a conflict shows which inputs changed."""
    return " ".join(_fingerprint(box.name, box.stored) for field in fields for box in field.inputs)


def merged(fields: Sequence[FormField], base: str) -> list[FormField]:
    """Return the form after a conflict: inputs the visitor changed keep the typed text, others show the stored value.

    If both people changed an input, `was` shows the stored value.
    """
    seen = set(base.split())

    def merge(box: Input) -> Input:
        if _fingerprint(box.name, box.text) in seen:
            return replace(box, typed=None)
        is_theirs = box.text != box.stored and _fingerprint(box.name, box.stored) not in seen
        return replace(box, was=box.stored if is_theirs else None)

    return [replace(field, inputs=tuple(merge(box) for box in field.inputs)) for field in fields]


def _inputs(attribute: Mapping[str, Any], value: Any, labels: Mapping[str, str]) -> list[Input]:
    """Return the inputs that show this value without loss, if necessary as JSON."""
    kind, name, label = attribute["type"], f"f:{attribute['slug']}", attribute["name"]
    if (attribute["isList"] or kind == AttributeType.LIST) and not isinstance(value, str):
        texts = [_line(element) for element in value] if isinstance(value, list) else []
        if (kind in (*PART_NAMES,) and kind != AttributeType.PHONE_NUMBER) or any(text is None for text in texts):
            return [Input(name, label, "" if value is None else jsontext.dumps(value), "json")]
        return [Input(name, label, "\n".join(text or "" for text in texts), "lines")]
    if kind in USUAL_PARTS and (value is None or isinstance(value, dict)):
        return _part_inputs(kind, name, value or {})
    if kind == AttributeType.CURRENCY:
        empty = attribute.get("currency") if value is None else None
        amount, currency = (value.get("amount"), value.get("currency")) if isinstance(value, dict) else (value, empty)
        return [Input(f"{name}:amount", "Amount", _text(amount), "number"), Input(f"{name}:currency", "Currency", _text(currency), "code")]
    text = _text(value)
    if kind == AttributeType.SELECT:
        options = tuple(attribute["config"]["options"])
        return [Input(name, label, text, "select", options if not text or text in options else (text, *options))]
    if kind == AttributeType.CHECKBOX:
        return [Input(name, label, text, "truth")]
    if kind == AttributeType.DATE:
        return [Input(name, label, text, "date" if not text or len(text) == 10 else "text")]
    if kind == AttributeType.REFERENCE:
        return [Input(name, label, labels.get(text, text), "reference"), Input(f"{name}:pick", label, "", "pick")]
    if kind == AttributeType.NUMBER:
        return [Input(name, label, text, "number")]
    is_long = len(text) > _LONG or "\n" in text or attribute["slug"] in ("notes", "description", "summary")
    return [Input(name, label, text, "textarea" if is_long else _KINDS.get(kind, "text"))]


def _part_inputs(kind: str, name: str, value: Mapping[str, Any]) -> list[Input]:
    usual = list(PART_NAMES[kind])
    parts = [part for part in usual if part in USUAL_PARTS[AttributeType(kind)] or part in value]
    parts += [part for part in value if part not in usual]
    texts = {part: _text(value.get(part)) for part in parts}
    # A field of one line would lose the others.
    kinds = {part: "textarea" if "\n" in text else "text" for part, text in texts.items()}
    return [Input(f"{name}:{part}", part_label(part), texts[part], kinds[part]) for part in parts]


def _line(element: Any) -> str | None:
    """Return an element of a list as one line of text, None if it does not fit on a line."""
    text = _text(element)
    fits = isinstance(element, str | int | float) and not isinstance(element, bool) and text == text.strip() and text and "\n" not in text
    return text if fits and "\r" not in text else None


def _text(value: Any) -> str:
    """Return the text of a value in a field, with plain line ends."""
    if value is None:
        return ""
    return (value if isinstance(value, str) else jsontext.dumps(value)).replace("\r\n", "\n").replace("\r", "\n")


def _part(name: str) -> str:
    """Return `city` of `f:address:city`, and "" for a value without parts."""
    return name.partition(":")[2].partition(":")[2]


def _read(field: FormField, texts: Mapping[str, str], is_free: Callable[[str], bool]) -> Any:
    """Return the value to write, None to clear it. Raises RejectedError and ValueError for a bad text."""
    attribute, before, kind = field.attribute, field.value, field.inputs[0].kind
    if kind == "json":
        return jsontext.loads(texts[""], unique_keys=True) if texts[""].strip() else None
    read = reader(Attribute(id="", slug=attribute["slug"], type=attribute["type"], config=attribute["config"]))

    def single(text: str) -> Any:
        return text if is_free(text) else read(ungrouped(text) if attribute["type"] == AttributeType.NUMBER else text)

    if kind == "lines":
        # Existing elements keep their type: adding an element does not turn numbers into text.
        stored = {_line(element): element for element in before} if isinstance(before, list) else {}
        lines = [line.strip() for line in texts[""].split("\n") if line.strip()]
        return [
            stored[line] if line in stored else str(line) if attribute["type"] == AttributeType.LIST else single(line) for line in lines
        ] or None
    if attribute["type"] == AttributeType.CURRENCY:
        return _read_money(before, texts, is_free, attribute.get("currency", ""))
    if attribute["type"] in USUAL_PARTS and "" not in texts:
        parts = (before if isinstance(before, dict) else {}) | {part: text.strip() for part, text in texts.items()}
        parts = {part: value for part, value in parts.items() if value != "" or part not in texts}
        return parts if any(value not in (None, "") for value in parts.values()) else None
    if kind == "reference":
        return texts.get("pick") or texts.get("", "").strip() or None
    text = texts[""] if kind == "textarea" else texts[""].strip()
    if not text.strip():
        return None
    return text if attribute["type"] in USUAL_PARTS else single(text)


def _read_money(before: Any, texts: Mapping[str, str], is_free: Callable[[str], bool], currency: str) -> Any:
    """Return the amount with its currency: of a new amount the default one, unless the visitor changed it."""
    parts = dict(before) if isinstance(before, dict) else {"currency": currency} if before is None else {"amount": before}
    if "amount" in texts:
        if not texts["amount"].strip():
            return None
        amount = texts["amount"].strip()
        parts["amount"] = (
            amount if is_free(amount) else reader(Attribute(id="", slug="amount", type=AttributeType.NUMBER))(ungrouped(amount))
        )
    if "currency" in texts:
        code = texts["currency"].strip()
        if code and not is_free(code):
            if not (len(code) == 3 and code.isascii() and code.isalpha()):
                raise ValueError("the currency is a code of three letters, such as EUR")
            code = code.upper()
        parts = {part: value for part, value in parts.items() if part != "currency"} | ({"currency": code} if code else {})
    if "amount" not in parts:
        if not parts.get("currency"):
            return None
        raise ValueError("a currency needs an amount")
    if not parts.get("currency"):
        raise ValueError("an amount needs a currency, such as EUR")
    return parts


def _fingerprint(name: str, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode(errors="replace")).hexdigest()[:12]
