"""YAML that people edit: documents, and one record with its changes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import COMPOSITE_TYPES, typed
from crmctl.values.composites import part_value

Path = tuple[str | int, ...]
"""The keys and positions that lead to a value."""


def loads(text: str) -> Any:
    """Parse YAML that holds only JSON values; dates are text. Raises ValueError with a readable reason."""
    import yaml

    try:
        value = yaml.load(text, _plain_loader())  # noqa: S506 - a SafeLoader
        _check_plain(value, "")
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(reason(error)) from error
    return value


def loads_with_lines(text: str) -> tuple[Any, dict[Path, int]]:
    """Parse YAML like `loads`; return also the line of every key and item, by its path."""
    import yaml

    return loads(text), dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader)))


def _lines(node: Any, path: Path = ()) -> Iterator[tuple[Path, int]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        yaml.constructor.SafeConstructor().flatten_mapping(node)  # merge keys
    for position, item in enumerate(node.value if isinstance(getattr(node, "value", None), list) else ()):
        key, value = item if isinstance(item, tuple) else (item, item)
        inner = (*path, key.value if isinstance(item, tuple) else position)
        yield inner, _line(key)
        yield from _lines(value, inner)


def _check_plain(value: Any, path: str) -> None:
    """Refuse what YAML has beyond JSON: keys that are not text, bytes, sets, infinity."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path or 'the file'} has the key {key!r}; put it in quotes")
            _check_plain(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _check_plain(item, f"{path}[{position}]")
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{path} has a value of a kind that is not known here; put it in quotes")


_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`."""


def _plain_loader() -> Any:
    """Return a loader that refuses repeated keys, of which PyYAML keeps the last, and reads dates as text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != _MERGE]
            repeated = next((key for key in keys if keys.count(key) > 1), None)
            if repeated is not None:
                raise yaml.constructor.ConstructorError(None, None, f"the key {repeated!r} is there twice", node.start_mark)
            return dict(super().construct_mapping(node, deep))

    Loader.yaml_implicit_resolvers = {
        first: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def dumps(value: Any) -> str:
    """Return any JSON value as a YAML document."""
    import yaml

    text: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf"))
    return text.removesuffix("...\n")


@cache
def _dumper() -> Any:
    import yaml

    line_ends = re.compile("[\x85\u2028\u2029]")
    numbers = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")  # of YAML 1.2; PyYAML knows 1.1

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def decimal(dumper: Any, number: Decimal) -> Any:
        mantissa, exponent, power = str(number).partition("E")
        text = (mantissa if "." in mantissa else f"{mantissa}.0") + exponent.lower() + power  # YAML 1.1 knows 1.0e+30, not 1E+30
        return dumper.represent_scalar("tag:yaml.org,2002:float", text)

    def text(dumper: Any, value: str) -> Any:
        # YAML reads these as line ends unless they are escaped, which it does between double quotes only.
        style = '"' if line_ends.search(value) else "'" if numbers.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(Decimal, decimal)
    Dumper.add_representer(jsontext.SpelledFloat, Dumper.represent_float)
    Dumper.add_representer(str, text)
    return Dumper


NOTHING = frozenset({"", "~", "null", "Null", "NULL"})


def shown_data(data: Mapping[str, Any], attributes: Sequence[Attribute]) -> Json:
    """Return the values to edit: every active attribute in display order, empty ones included, then all other values of the record."""
    ordered = sorted(attributes, key=lambda attribute: attribute.display_order if attribute.display_order is not None else 1 << 30)
    slugs = [attribute.slug for attribute in ordered if attribute.is_active is not False]
    return {**{slug: data.get(slug) for slug in slugs}, **{slug: value for slug, value in data.items() if slug not in slugs}}


class _Word(str):
    """A scalar as it is written, with its node."""

    node: Any


def edited_values(before: str, after: str, attributes: Sequence[Attribute]) -> Json:
    """Return the values that editing changed. A deleted line changes nothing. Raises UsageError, with the line, for malformed YAML and
    unknown names, RejectedError for a value that does not fit."""
    old, new = _document(before), _document(after)
    by_slug = {attribute.slug: attribute for attribute in attributes}
    changed = {}
    for slug, value in new.items():
        if slug in old and old[slug] == value:
            continue
        line = _line(slug.node)
        if slug not in by_slug:
            names = ", ".join(by_slug)
            raise UsageError(f"line {line}: there is no attribute {slug}", hint=f"the attributes are: {names}", code="bad_edit")
        try:
            changed[str(slug)] = _value(value, by_slug[slug])
        except RejectedError as error:
            raise RejectedError(f"line {line}: {error.message}", hint=error.hint, code=error.code) from error
    return changed


def _document(text: str) -> dict[_Word, Any]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(reason(error), code="bad_edit") from error
    document = {} if root is None else _words(root)
    if not isinstance(document, dict):
        raise UsageError(f"line {_line(root)}: attributes and their values are expected, one a line", code="bad_edit")
    return document


def _words(node: Any) -> Any:
    """Return a node as an object, an array, a word, or None. Raises UsageError for a repeated key."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_words(element) for element in node.value]
    if isinstance(node, yaml.MappingNode):
        words: dict[_Word, Any] = {}
        for key, value in node.value:
            name = _word(key)
            if name in words:
                raise UsageError(f"line {_line(key)}: {name} is there twice", code="bad_edit")
            words[name] = _words(value)
        return words
    return None if node.style is None and node.value in NOTHING else _word(node)


def _word(node: Any) -> _Word:
    word = _Word(node.value)
    word.node = node
    return word


def _value(value: Any, attribute: Attribute) -> Any:
    if isinstance(value, str):
        return typed(str(value), attribute)
    if isinstance(value, list):
        if attribute.type == AttributeType.LIST:
            return _free(value)
        if not attribute.is_list:
            raise RejectedError(f"{attribute.slug} takes one value, not a list")
        return [_value(element, attribute.with_changes(is_list=False)) for element in value]
    if isinstance(value, dict) and attribute.type in COMPOSITE_TYPES:
        parts = ((str(key), part) for key, part in value.items())
        return {key: part_value(attribute, key, str(part)) if isinstance(part, str) else _free(part) for key, part in parts} or None
    return _free(value)


def _free(value: Any) -> Any:
    """Return a value of unknown type: text, unless YAML shows otherwise."""
    if isinstance(value, dict):
        return {str(key): _free(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_free(item) for item in value]
    if isinstance(value, _Word) and value.node.style is None:
        is_number = value.node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        with suppress(ValueError):
            return jsontext.loads(value) if is_number or value in ("true", "false") else str(value)
    return None if value is None else str(value)


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
