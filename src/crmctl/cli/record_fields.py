"""From the options of `records create` and `records update` to the fields that are sent: parts of values are merged into what is there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crmctl.cli.targets import known_attributes, on_object, read_json_object
from crmctl.errors import DeniedError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.named_records import NamedRecord
    from crmctl.cli.runtime import Runtime
    from crmctl.models.attributes import Attribute
    from crmctl.models.composites import Form

SAMPLED = 20
"""How many existing records show the form of values."""


def read_fields(
    runtime: Runtime,
    text: str,
    assignments: Sequence[str] | None,
    data: str | None,
    *,
    currency: str | None = None,
    record: NamedRecord | None = None,
) -> dict[str, Any]:
    """The fields of --data and --set together, --set winning; of a `record` that is there, parts that are not named stay as they are.

    Raises UsageError when neither was given or one cannot be read, RejectedError for a value that does not fit or cannot be merged.
    """
    from crmctl.models.assignments import Given, parse_assignments, without_bare_amounts
    from crmctl.models.composites import Merger, currency_code

    default_currency = currency_code(currency)
    check_given(assignments, data)
    whole = read_json_object(runtime, data) if data is not None else {}
    shown = ShownRecords(runtime, text, record)
    given = Given({}, {})
    attributes: Sequence[Attribute] = ()
    if assignments:
        attributes = runtime.directory.attributes(text)
        given = parse_assignments(assignments, attributes, form_of=shown.form)
    elif any(isinstance(value, int | float) and not isinstance(value, bool) for value in whole.values()):
        attributes = known_attributes(runtime, text) or ()
    given = Given(whole | given.data, given.parts)
    known = {attribute.slug: attribute for attribute in attributes}
    split = without_bare_amounts(Given({slug: value for slug, value in given.data.items() if slug not in given.parts}, {}), attributes)
    parts = given.parts | split.parts
    if not parts:
        return given.data
    base = {slug: given.data[slug] if slug in given.parts and slug in given.data else shown.current.get(slug) for slug in parts}
    forms = {slug: shown.form(known[slug]) for slug in parts if base[slug] in (None, "", [], {})}
    return given.data | Merger(known, forms, default_currency).merge_all(parts, base)


def check_given(assignments: Sequence[str] | None, data: str | None) -> None:
    """Raises UsageError when there is nothing to write at all."""
    if not assignments and data is None:
        raise UsageError("nothing to write", hint="give fields with --set slug=value or --data '{...}'")


class ShownRecords:
    """What the service shows of values: the record that is changed, and a few others; each is read when it is needed, once."""

    def __init__(self, runtime: Runtime, text: str, record: NamedRecord | None) -> None:
        self._runtime, self._text, self._record = runtime, text, record

    @cached_property
    def current(self) -> dict[str, Any]:
        """The data of the record that is changed; nothing for a new one."""
        if self._record is None:
            return {}
        named = self._record
        read = named.record or on_object(self._runtime, self._text, lambda target: self._runtime.crm.get_record(target, named.id))
        return read.data

    @cached_property
    def others(self) -> list[dict[str, Any]]:
        """The data of some existing records; of none where the key may not read them."""
        try:
            page = on_object(self._runtime, self._text, lambda target: self._runtime.crm.list_records(target, limit=SAMPLED))
        except DeniedError as error:
            if error.status != 403:
                raise
            return []
        return [record.data for record in page.items]

    def form(self, attribute: Attribute) -> Form:
        """How existing records hold an attribute."""
        from crmctl.models.composites import learn_form

        return learn_form(attribute, [self.current, *self.others])
