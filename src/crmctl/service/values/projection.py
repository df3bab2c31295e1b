"""From a value on the wire to what is stored beside it for searching; checks the value on the way. Pure.

Empty is one thing: missing, null, "", [] and a composite or array in which every part is empty all project to nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.models.folded_text import fold
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.kinds import KINDS, Family
from crmctl.service.values.text import Invalid

MAX_ELEMENTS = 1000
MAX_UNIQUE = 500
"""Longest text, in characters, that an index entry can hold on both engines."""


class Projection(NamedTuple):
    """`column` is what operators compare (a JSON array where the attribute holds many), `exact` the unfolded text where it differs;
    `keys` are the single canonical values, as uniqueness and references need them."""

    column: str | None = None
    exact: str | None = None
    keys: tuple[str, ...] = ()


EMPTY = Projection()


def project(attribute: StoredAttribute, value: Any) -> Projection:
    """Raises Invalid when the attribute does not take the value."""
    if value is None:
        return EMPTY
    if not attribute.holds_many:
        # Most values: no call more than it takes.
        kind = KINDS[attribute.type]
        text = kind.read(value, attribute) if kind.plain is None else kind.plain(value)
        if not text:
            return EMPTY
        key = text if kind.family is not Family.TEXT else text.lower() if text.isascii() else fold(text)
        projection = Projection(key, None if key == text else text, (key,))
    else:
        projection = _project_many(attribute, value)
    if attribute.is_unique and any(len(key) > MAX_UNIQUE for key in projection.keys):
        raise Invalid(f"must have at most {MAX_UNIQUE} characters, because it is unique")
    return projection


def _project_many(attribute: StoredAttribute, value: Any) -> Projection:
    if not isinstance(value, list):
        raise Invalid("must be an array")
    if len(value) > MAX_ELEMENTS:
        raise Invalid(f"must have at most {MAX_ELEMENTS:,} elements")
    kind = KINDS[attribute.type]
    texts = []
    for index, element in enumerate(value):
        try:
            texts.append(kind.read(element, attribute))
        except Invalid as error:
            raise Invalid(f"has an element {index} that {error}") from None
    texts = [text for text in texts if text]
    if not texts:
        return EMPTY
    keys = [fold(text) for text in texts] if kind.family is Family.TEXT else texts
    return Projection(jsontext.dumps(keys), None if keys == texts else jsontext.dumps(texts), tuple(keys))


def keys_in(attribute: StoredAttribute, column: str | None) -> tuple[str, ...]:
    """The keys a stored projection holds."""
    if column is None:
        return ()
    return tuple(jsontext.loads(column)) if attribute.holds_many else (column,)
