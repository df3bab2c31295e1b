"""Reports and workflows by id or exact name. Names are looked up anew each time: two things may share one, and both may be renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from crmctl.client.schema_cache import SchemaCache
from crmctl.errors import NotFoundError, UsageError
from crmctl.models.nearest import nearest

REPORTS = "reports"
WORKFLOWS = "workflows"


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str | None: ...


N = TypeVar("N", bound=Named)


def remember_names(cache: SchemaCache, kind: str, items: Sequence[Named]) -> None:
    """Keep the names of `kind` (REPORTS or WORKFLOWS) for shell completion."""
    cache.put(kind, [{"id": item.id, "name": item.name} for item in items])


def find_by_name(items: Sequence[N], kind: str, name: str) -> N:
    """The one item of this exact name. Raises UsageError that lists the ids of several, NotFoundError with near names."""
    found = [item for item in items if item.name == name]
    if len(found) == 1:
        return found[0]
    noun = kind.removesuffix("s")
    if found:
        ids = [item.id for item in found]
        raise UsageError(
            f"{len(ids)} {kind} have the name {name!r}: {', '.join(ids)}",
            hint=f"name the {noun} by its id",
            code="ambiguous_name",
            details={"ids": ids},
        )
    names = sorted({item.name for item in items if item.name})
    raise NotFoundError(f"there is no {noun} {name!r}", hint=_hint(name, names, kind), details={"valid": names})


def _hint(name: str, names: list[str], kind: str) -> str:
    """The nearest name, else one that holds what was typed."""
    near = nearest(name, names) or next((each for each in names if name and name.casefold() in each.casefold()), None)
    return f"did you mean {near!r}?" if near is not None else f"crmctl {kind} list shows what there is"
