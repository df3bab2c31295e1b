"""One attribute as the value and storage code sees it: plain data, no SQL, no wire form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from crmctl.models.attributes import AttributeType

_INDEXED_TYPES = frozenset(
    {
        AttributeType.EMAIL,
        AttributeType.PHONE_NUMBER,
        AttributeType.SELECT,
        AttributeType.REFERENCE,
        AttributeType.CHECKBOX,
        AttributeType.DATE,
        AttributeType.NUMBER,
        AttributeType.CURRENCY,
    }
)


@dataclass(frozen=True)
class StoredAttribute:
    """`number` names its columns; `options` belong to select, `target_id` (an object) to reference."""

    id: str
    number: int
    slug: str
    type: AttributeType
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    options: tuple[str, ...] = ()
    target_id: str | None = None

    @cached_property
    def holds_many(self) -> bool:
        """The value is an array: every list attribute, and any other type with isList."""
        return self.is_list or self.type is AttributeType.LIST

    @cached_property
    def is_indexed(self) -> bool:
        """An array's projection cannot be searched through an index, so only single values have one."""
        return not self.holds_many and (self.is_unique or self.type in _INDEXED_TYPES)

    @cached_property
    def option_set(self) -> frozenset[str]:
        return frozenset(self.options)
