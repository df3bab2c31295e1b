"""Project a value to the texts that are stored for searching."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.values.attribute_types import Family, StoredAttribute
from crmctl.values.folded_text import fold
from crmctl.values.value_readers import Invalid, plain_texts

MAX_ELEMENTS = 1000
_PLAIN_ELEMENTS = frozenset({"text", "list"})
"""Types that accept any text as an element."""

MAX_UNIQUE = 500
"""Longest text, in characters, that an index entry can hold on both engines."""


class Projection(NamedTuple):
    """Stored texts of a value. Operators compare `column`, a JSON array for attributes that hold many; `exact` is the unfolded text if it
    differs; `keys` are the single canonical values for uniqueness and references."""

    column: str | None = None
    exact: str | None = None
    keys: tuple[str, ...] = ()


EMPTY = Projection()

_made = partial(tuple.__new__, Projection)


def project(attribute: StoredAttribute, value: Any) -> Projection:
    """Return the projection of a value. Raises Invalid for a value that does not fit the attribute."""
    if value is None:
        return EMPTY
    if not attribute.holds_many:
        # The usual case takes as few calls as possible.
        text = attribute.check(value)
        if not text:
            return EMPTY
        key = text if attribute.row.family is not Family.TEXT else text.lower() if text.isascii() else fold(text)
        projection = Projection(key, None if key == text else text, (key,))
    else:
        projection = _project_many(attribute, value)
    if attribute.is_unique and any(len(key) > MAX_UNIQUE for key in projection.keys):
        raise Invalid(f"must have at most {MAX_UNIQUE} characters, because it is unique")
    return projection


def project_all(attribute: StoredAttribute, values: Sequence[Any]) -> list[Projection]:
    """Return the projections of many values, much faster than `project` if all are plain. Raises Invalid."""
    if None in values:
        projections = iter(project_all(attribute, [value for value in values if value is not None]))
        return [EMPTY if value is None else next(projections) for value in values]
    check_all = attribute.row.check_all
    texts: Sequence[str] | None = None
    if values and not attribute.holds_many:
        texts = check_all(values) if check_all is not None else list(map(attribute.check, values))
    if texts is None or not all(texts) or (attribute.is_unique and max(map(len, texts)) > MAX_UNIQUE):
        return [project(attribute, value) for value in values]
    if attribute.row.family is not Family.TEXT:
        return [_made((text, None, (text,))) for text in texts]
    keys = _folded(texts)
    return [_made((key, None if key == text else text, (key,))) for key, text in zip(keys, texts, strict=True)]


def _folded(texts: Sequence[str]) -> list[str]:
    """Fold texts without NUL characters."""
    joined = "\0".join(texts)
    return joined.lower().split("\0") if joined.isascii() else [fold(text) for text in texts]


def _project_many(attribute: StoredAttribute, value: Any) -> Projection:
    if not isinstance(value, list):
        raise Invalid("must be an array")
    if len(value) > MAX_ELEMENTS:
        raise Invalid(f"must have at most {MAX_ELEMENTS:,} elements")
    texts = value if attribute.type in _PLAIN_ELEMENTS and plain_texts(value) else _read_elements(attribute, value)
    texts = [text for text in texts if text]
    if not texts:
        return EMPTY
    keys = _folded(texts) if attribute.row.family is Family.TEXT else texts
    return Projection(jsontext.dumps(keys), None if keys == texts else jsontext.dumps(texts), tuple(keys))


def _read_elements(attribute: StoredAttribute, value: list[Any]) -> list[str]:
    texts = []
    for index, element in enumerate(value):
        try:
            texts.append(attribute.check(element))
        except Invalid as error:
            raise Invalid(f"has an element {index} that {error}") from None
    return texts


def keys_in(attribute: StoredAttribute, column: str | None) -> tuple[str, ...]:
    """Return the keys in a stored projection."""
    if column is None:
        return ()
    return tuple(jsontext.loads(column)) if attribute.holds_many else (column,)
