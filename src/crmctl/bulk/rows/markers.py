"""Import markers: a reference written into a text attribute of every created record, by which it is found again. Pure text.

The marker of a row is a function of job and ordinal, so that every attempt carries the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute, AttributeType

GROUP_ROWS = 100
"""So many consecutive rows share a prefix, and one page of a filtered list shows them."""


@dataclass(frozen=True)
class Marker:
    """`<job8>.<group>.<row>` in the attribute `slug`: digits and lower-case letters, so that no rule about case matters."""

    slug: str
    job: str

    @classmethod
    def of(cls, slug: str, job_id: str) -> Marker:
        return cls(slug, hashlib.blake2b(job_id.encode(), digest_size=4).hexdigest())

    def text(self, ordinal: int) -> str:
        return f"{self.prefix((ordinal - 1) // GROUP_ROWS + 1)}{ordinal}"

    def prefix(self, group: int) -> str:
        """What the markers of a group begin with; ends in a separator, or group 1 would match group 10. Group 0 has no rows."""
        return f"{self.job}.{group}."

    def prefixes(self, ordinals: Sequence[int]) -> list[str]:
        """The prefixes of the groups these rows are in."""
        return [self.prefix(group) for group in sorted({(ordinal - 1) // GROUP_ROWS + 1 for ordinal in ordinals})]


def check_marker(slug: str, attributes: Sequence[Attribute], filled: Sequence[str]) -> None:
    """Raise UsageError unless `slug` is a plain text attribute that nothing else fills."""
    attribute = next((attribute for attribute in attributes if attribute.slug == slug), None)
    texts = [attribute.slug for attribute in attributes if attribute.type == AttributeType.TEXT and not attribute.is_list]
    if attribute is None or slug not in texts:
        problem = f"there is no attribute {slug}" if attribute is None else f"{slug} holds {attribute.type}, not plain text"
        raise UsageError(f"--marker: {problem}", hint=f"text attributes: {', '.join(texts) or 'none'}", code="bad_marker")
    if slug in filled:
        raise UsageError(
            f"--marker: a column or --set fills {slug} already", hint="markers need an attribute of their own", code="bad_marker"
        )
