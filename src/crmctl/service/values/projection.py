"""From a value on the wire to what is stored beside it for searching; checks the value on the way. Pure.

Empty is one thing: missing, null, "", [] and a composite or array in which every part is empty all project to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.models.folded_text import fold
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.kinds import KINDS, Family
from crmctl.service.values.text import Invalid, plain_texts

MAX_ELEMENTS = 1000
_PLAIN_ELEMENTS = frozenset({AttributeType.TEXT, AttributeType.LIST})
"""Of which any text is an element."""

MAX_UNIQUE = 500
"""Longest text, in characters, that an index entry can hold on both engines."""


class Projection(NamedTuple):
    """`column` is what operators compare (a JSON array where the attribute holds many), `exact` the unfolded text where it differs;
    `keys` are the single canonical values, as uniqueness and references need them."""

    column: str | None = None
    exact: str | None = None
    keys: tuple[str, ...] = ()


EMPTY = Projection()

_made = partial(tuple.__new__, Projection)


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


def project_all(attribute: StoredAttribute, values: Sequence[Any]) -> list[Projection]:
    """What `project` gives for each value, in a fraction of its time where all are plain. Raises Invalid when any is not taken."""
    if None in values:
        found = iter(project_all(attribute, [value for value in values if value is not None]))
        return [EMPTY if value is None else next(found) for value in values]
    kind = KINDS[attribute.type]
    texts: Sequence[str] | None = None
    if values and not attribute.holds_many:
        texts = [kind.read(value, attribute) for value in values] if kind.read_plain is None else kind.read_plain(values)
    if texts is None or not all(texts) or (attribute.is_unique and max(map(len, texts)) > MAX_UNIQUE):
        return [project(attribute, value) for value in values]
    if kind.family is not Family.TEXT:
        return [_made((text, None, (text,))) for text in texts]
    keys = _folded(texts)
    return [_made((key, None if key == text else text, (key,))) for key, text in zip(keys, texts, strict=True)]


def _folded(texts: Sequence[str]) -> list[str]:
    """None of the texts holds a NUL."""
    joined = "\0".join(texts)
    return joined.lower().split("\0") if joined.isascii() else [fold(text) for text in texts]


def _project_many(attribute: StoredAttribute, value: Any) -> Projection:
    if not isinstance(value, list):
        raise Invalid("must be an array")
    if len(value) > MAX_ELEMENTS:
        raise Invalid(f"must have at most {MAX_ELEMENTS:,} elements")
    kind = KINDS[attribute.type]
    texts = value if attribute.type in _PLAIN_ELEMENTS and plain_texts(value) else _read_elements(attribute, value)
    texts = [text for text in texts if text]
    if not texts:
        return EMPTY
    keys = _folded(texts) if kind.family is Family.TEXT else texts
    return Projection(jsontext.dumps(keys), None if keys == texts else jsontext.dumps(texts), tuple(keys))


def _read_elements(attribute: StoredAttribute, value: list[Any]) -> list[str]:
    texts = []
    for index, element in enumerate(value):
        try:
            texts.append(KINDS[attribute.type].read(element, attribute))
        except Invalid as error:
            raise Invalid(f"has an element {index} that {error}") from None
    return texts


def keys_in(attribute: StoredAttribute, column: str | None) -> tuple[str, ...]:
    """The keys a stored projection holds."""
    if column is None:
        return ()
    return tuple(jsontext.loads(column)) if attribute.holds_many else (column,)
