"""A record as YAML that a person edits, and what was changed in it. Pure; a text is read by the attributes, never by YAML's own guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.assignments import part_value
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import COMPOSITE_TYPES
from crmctl.models.typed_text import typed

NOTHING = frozenset({"", "~", "null", "Null", "NULL"})


def shown_data(data: Mapping[str, Any], attributes: Sequence[Attribute]) -> dict[str, Any]:
    """What there is to edit: every active attribute in display order, also those without a value, then what else the record holds."""
    ordered = sorted(attributes, key=lambda one: one.display_order if one.display_order is not None else 1 << 30)
    slugs = [attribute.slug for attribute in ordered if attribute.is_active is not False]
    return {**{slug: data.get(slug) for slug in slugs}, **{slug: value for slug, value in data.items() if slug not in slugs}}


@dataclass(frozen=True)
class EditedText:
    """The text before and after, and what tells how values are read."""

    before: str
    attributes: Sequence[Attribute]

    def changes(self, after: str) -> dict[str, Any]:
        """The new values of what says something else now; a line that was taken out says nothing. Raises UsageError, with the line, for
        what is no YAML and for names that are none, RejectedError for a value that does not fit."""
        old, new = _nodes(self.before), _nodes(after)
        known = {attribute.slug: attribute for attribute in self.attributes}
        changed = {}
        for slug, node in new.items():
            if slug in old and _plain(old[slug]) == _plain(node):
                continue
            if slug not in known:
                names = ", ".join(known)
                raise UsageError(f"line {_line(node)}: there is no attribute {slug}", hint=f"the attributes are: {names}", code="bad_edit")
            try:
                changed[slug] = _value(node, known[slug])
            except RejectedError as error:
                raise RejectedError(f"line {_line(node)}: {error.message}", hint=error.hint, code=error.code) from error
        return changed


def _nodes(text: str) -> dict[str, Any]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(reason(error), code="bad_edit") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"line {_line(root)}: attributes and their values are expected, one a line", code="bad_edit")
    found: dict[str, Any] = {}
    for key, node in root.value:
        name = str(key.value)
        if name in found:
            raise UsageError(f"line {_line(key)}: {name} is there twice", code="bad_edit")
        found[name] = node
    return found


def _plain(node: Any) -> Any:
    """What a node says, however it is written."""
    if isinstance(node.value, str):
        return None if _is_nothing(node) else node.value
    if node.value and isinstance(node.value[0], tuple):
        return {str(key.value): _plain(value) for key, value in node.value}
    return [_plain(one) for one in node.value]


def _is_nothing(node: Any) -> bool:
    return node.style is None and node.value in NOTHING


def _value(node: Any, attribute: Attribute) -> Any:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return None if _is_nothing(node) else typed(node.value, attribute)
    if isinstance(node, yaml.SequenceNode):
        if not attribute.is_list and attribute.type != AttributeType.LIST:
            raise RejectedError(f"{attribute.slug} takes one value, not a list")
        one = attribute.model_copy(update={"is_list": False})
        if attribute.type == AttributeType.LIST:
            return [_free(element) for element in node.value]
        return [_value(element, one) for element in node.value]
    if attribute.type in COMPOSITE_TYPES:
        return {str(key.value): _part(value, attribute, str(key.value)) for key, value in node.value} or None
    return _free(node)


def _part(node: Any, attribute: Attribute, part: str) -> Any:
    if not isinstance(node.value, str):
        return _free(node)
    return None if _is_nothing(node) else part_value(attribute, part, node.value)


def _free(node: Any) -> Any:
    """A value without an attribute that says what it is: text, unless YAML shows that it is none."""
    if isinstance(node.value, str):
        plain = {"true": True, "false": False}
        if node.style is not None:
            return node.value
        if _is_nothing(node):
            return None
        if node.value in plain:
            return plain[node.value]
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            try:
                return jsontext.loads(node.value)
            except ValueError:
                return node.value
        return node.value
    if node.value and isinstance(node.value[0], tuple):
        return {str(key.value): _free(value) for key, value in node.value}
    return [_free(one) for one in node.value]


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
