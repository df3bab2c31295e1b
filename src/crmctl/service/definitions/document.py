"""The definitions file: its shape, reading it from YAML and writing it. What its entries do to a service is in loading."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from crmctl.errors import reason
from crmctl.service.faults import BadRequest
from crmctl.service.reports.definition import ReportDefinition
from crmctl.service.shapes import Body, check_shape
from crmctl.service.workflows.definition import WorkflowDefinition


class MemberDefinition(Body):
    name: str
    email: str
    role: str = "member"
    image: str | None = None


class AttributeDefinition(Body):
    """In `config`, a reference names its object by slug as `allowed_object`, so that a file fits any service."""

    name: str
    slug: str
    type: str
    config: dict[str, Any] | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    is_active: bool = True


class ObjectDefinition(Body):
    slug: str
    plural_name: str
    singular_name: str | None = None
    description: str | None = None
    attributes: list[AttributeDefinition] = Field(default_factory=list)


class Document(Body):
    members: list[MemberDefinition] = Field(default_factory=list)
    objects: list[ObjectDefinition] = Field(default_factory=list)
    reports: list[ReportDefinition] = Field(default_factory=list)
    workflows: list[WorkflowDefinition] = Field(default_factory=list)


def load_yaml(text: str) -> Any:
    """What JSON could hold, too. Raises BadRequest, with the line where it is not YAML."""
    import yaml

    try:
        raw = yaml.load(text, _plain_loader())  # noqa: S506 - a SafeLoader
        _check_plain(raw, "")
    except yaml.YAMLError as error:
        raise BadRequest(f"the file is not YAML: {reason(error)}") from None
    except RecursionError:
        raise BadRequest("the file is nested too deeply") from None
    return raw


def parse_document(text: str) -> Document:
    """Raises BadRequest, with the line where it is not YAML, with the path of the field where an entry is wrong."""
    raw = load_yaml(text)
    if raw is None:
        return Document()
    if not isinstance(raw, dict):
        raise BadRequest("the file must hold sections such as members: and objects:")
    document = check_shape(Document, {section: entries or [] for section, entries in raw.items()})
    assert isinstance(document, Document)
    _refuse_repeats("members", [member.email for member in document.members])
    _refuse_repeats("objects", [each.slug for each in document.objects])
    _refuse_repeats("reports", [each.name for each in document.reports])
    _refuse_repeats("workflows", [each.name for each in document.workflows])
    for each in document.objects:
        _refuse_repeats(f"objects[{each.slug}].attributes", [attribute.slug for attribute in each.attributes])
    return document


def format_document(sections: dict[str, Any]) -> str:
    """The file as text."""
    import yaml

    return str(yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120))


def _refuse_repeats(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"{where} names {name} twice")


def _check_plain(value: Any, path: str) -> None:
    """YAML can hold more than JSON: a key that is no text, bytes, a set, infinity."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadRequest(f"{path or 'the file'} has the key {key!r}; put it in quotes")
            _check_plain(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _check_plain(item, f"{path}[{position}]")
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise BadRequest(f"{path} has a value of a kind that is not known here; put it in quotes", {"field": path})


def _plain_loader() -> Any:
    """PyYAML keeps the last of two equal keys without a word; a definitions file must not lose an entry that way. Dates stay text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            repeated = next((key for key in keys if keys.count(key) > 1), None)
            if repeated is not None:
                raise yaml.constructor.ConstructorError(None, None, f"the key {repeated!r} is there twice", node.start_mark)
            return dict(super().construct_mapping(node, deep))

    Loader.yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader
