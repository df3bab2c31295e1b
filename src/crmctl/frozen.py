"""A dataclass that costs a quarter of `@dataclass(frozen=True)` to define. A command defines up to 120 of them before it does anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, dataclass_transform, overload

C = TypeVar("C")


@overload
def frozen(cls: type[C]) -> type[C]: ...
@overload
def frozen(*, kw_only: bool) -> Callable[[type[C]], type[C]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, *, kw_only: bool = False) -> Any:
    """Make a class a dataclass that is compared and shown by its fields.

    The type checker refuses assignments to its fields; nothing does at run time. The standard library compiles six methods for each
    class. Here only `__init__` is compiled, and the classes share the others.
    """
    if cls is None:
        return partial(frozen, kw_only=kw_only)
    made = dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
    for name in ("__eq__", "__hash__", "__repr__"):
        if name not in vars(made):
            setattr(made, name, vars(_Methods)[name])
    return made


class _Methods:
    def __eq__(self, other: object) -> bool:
        return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(_compared(self))

    def __repr__(self: Any) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _compared(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, each.name) for each in fields(one) if each.compare)
