"""How a record is called in a question: by its name where it has one, and by what else tells it from others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute
    from crmctl.models.records import Record

NAMING = ("name", "title", "full_name", "subject")
TELLING = ("email", "domain", "email_address", "phone")


def record_name(runtime: Runtime, record: Record, attributes: Sequence[Attribute]) -> str:
    """`Ada Lovelace (ada@acme.com)`; the id of a record that has no name."""
    shown = [
        next((text for slug in slugs if (text := value_text(runtime, record.data.get(slug), slug, attributes))), "")
        for slugs in (NAMING, TELLING)
    ]
    name, telling = shown
    return f"{name} ({telling})" if name and telling else name or telling or record.id


def value_text(runtime: Runtime, value: Any, slug: str, attributes: Sequence[Attribute]) -> str:
    """A value as a table shows it."""
    from crmctl.output.value_text import shown
    from crmctl.output.views import attribute_kind

    attribute = next((one for one in attributes if one.slug == slug), None)
    return shown(value, attribute_kind(attribute) if attribute is not None else "text", runtime.emitter.rendering())
