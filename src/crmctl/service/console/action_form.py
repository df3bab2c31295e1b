"""The actions of a workflow in a form: one block each with a few fields, and back. What a block does not show, the action keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.service.console.visits import Visit
from crmctl.service.faults import BadRequest

TYPES = {
    "updateRecord": "Change the record",
    "createRecord": "Create a record",
    "createActivity": "Add an activity",
    "callUrl": "Call an address",
}
FIELDS = ("type", "object", "data", "title", "summary", "url", "body")


@dataclass(frozen=True)
class ActionBlock:
    """What a block shows, as text: `data` has one `attribute: value` a line, `body` is JSON."""

    type: str = ""
    object: str = ""
    data: str = ""
    title: str = ""
    summary: str = ""
    url: str = ""
    body: str = ""


def blocks_for(actions: Sequence[Mapping[str, Any]]) -> list[ActionBlock]:
    """The actions of a definition, and an empty block for one more."""
    return [*(_block(action) for action in actions), ActionBlock()]


def typed_blocks(visit: Visit) -> list[ActionBlock]:
    """The blocks as they were filled in, those without a type left out; an empty one for one more."""
    columns = [visit.chosen(f"action-{name}") for name in FIELDS]
    blocks = [ActionBlock(*(text.replace("\r\n", "\n") for text in texts)) for texts in zip(*columns, strict=False)]
    return [*(block for block in blocks if block.type), ActionBlock()]


def actions_of(blocks: Sequence[ActionBlock], stored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks as actions; one that stays in its place keeps what the form does not show. Raises BadRequest with the block's number."""
    actions: list[dict[str, Any]] = []
    for place, block in enumerate(block for block in blocks if block.type):
        same = place < len(stored) and stored[place].get("type") == block.type
        kept = dict(stored[place]) if same else {"type": block.type}
        before = _block(stored[place]) if same else ActionBlock()
        try:
            actions.append(kept | _read(block, before, kept))
        except ValueError as error:
            raise BadRequest(f"action {place + 1}: {error}", {"field": f"actions[{place}]"}) from None
    return actions


def _block(action: Mapping[str, Any]) -> ActionBlock:
    data = action.get("data") or {}
    return ActionBlock(
        str(action.get("type", "")),
        str(action.get("object", "")),
        "\n".join(f"{slug}: {_line(value)}" for slug, value in data.items()) if isinstance(data, dict) else "",
        str(action.get("title", "")),
        str(action.get("summary") or ""),
        str(action.get("url", "")),
        "" if action.get("body") is None else jsontext.dumps(action["body"], indent=2),
    )


def _line(value: Any) -> str:
    """A value on its line: text as it is unless it could be read as something else."""
    if isinstance(value, str) and value and value == value.strip() and "\n" not in value and _is_text(value):
        return value
    return jsontext.dumps(value)


def _is_text(text: str) -> bool:
    try:
        jsontext.loads(text)
    except ValueError:
        return True
    return False


def _read(block: ActionBlock, before: ActionBlock, kept: Mapping[str, Any]) -> dict[str, Any]:
    """What the block says of its type's fields. Raises ValueError."""
    if block.type in ("updateRecord", "createRecord"):
        data = kept["data"] if block.data == before.data and "data" in kept else _data(block.data)
        return {"data": data} | ({"object": block.object} if block.object else {})
    if block.type == "createActivity":
        return {"title": block.title} | ({"summary": block.summary} if block.summary or "summary" in kept else {})
    if block.type != "callUrl":
        raise ValueError("choose what it does")
    if block.body == before.body and "body" in kept:
        return {"url": block.url}
    try:
        return {"url": block.url} | ({"body": jsontext.loads(block.body, unique_keys=True)} if block.body.strip() else {})
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {reason(error)}") from None


def _data(text: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for line in (line.strip() for line in text.split("\n")):
        if not line:
            continue
        slug, colon, value = line.partition(":")
        if not colon or not slug.strip():
            raise ValueError(f"{line!r} is not attribute: value")
        if slug.strip() in data:
            raise ValueError(f"{slug.strip()} is there twice")
        value = value.strip()
        data[slug.strip()] = value if not value or _is_text(value) else jsontext.loads(value)
    return data
