"""What every resource on the wire has in common. Tolerant on input: extra fields stay, missing or odd optional ones are None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from crmctl.errors import ServiceError


def to_camel(name: str) -> str:
    """A field's name on the wire."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class Resource(BaseModel):
    """A resource as the service sent it: typed fields for the code, `wire` for output, exactly as it came.

    Timestamps and UUIDs stay strings: crmctl shows what the service said and never reformats it.
    """

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True, defer_build=True)

    _wire: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def wire(self) -> dict[str, Any]:
        """The JSON object as received, with every field the service sent, in its order."""
        return self._wire

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read one resource; an optional field of an unexpected type is treated as absent.

        Raises ServiceError when a required field (normally `id`) is missing or unusable.
        """
        try:
            resource = cls.model_validate(raw)
        except ValidationError as error:
            odd = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            try:
                resource = cls.model_validate({key: value for key, value in raw.items() if key not in odd})
            except ValidationError:
                raise ServiceError(
                    f"the service sent a {cls.__name__.lower()} without a usable {', '.join(sorted(odd))}", code="unreadable_answer"
                ) from error
        resource._wire = dict(raw)
        return resource
