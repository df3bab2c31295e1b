"""Write the changes a user made to one record in an editor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.client.crm import Crm
from crmctl.errors import RejectedError
from crmctl.files.cell_values import ValueOptions, merger_of
from crmctl.frozen import frozen
from crmctl.models.resources import Attribute, Record
from crmctl.values.composites import Given, without_bare_amounts

CHANGED = 412
"""Status of a write to an outdated version."""


@frozen
class Edit:
    """The edit of one record: the record as the user saw it, the values that differ from it, and the attributes of its object."""

    object: str
    shown: Record
    changes: Mapping[str, Any]
    attributes: Sequence[Attribute]

    def write(self, service: Crm, object_id: str) -> Record:
        """Write the changes, and return the record. Raises RejectedError if another client changed the record since it was shown."""
        changes, record_id = without_bare_amounts(Given(dict(self.changes), {}), self.attributes), self.shown.id
        # An amount without a currency keeps the currency of the record.
        data = changes.data | merger_of(self.attributes, ValueOptions()).merge_all(changes.parts, self.shown.data)
        now, version = service.get_version(object_id, record_id)
        self._refuse_changed(now, "nothing was sent")
        try:
            return service.update_record(object_id, record_id, data, version=version)
        except RejectedError as error:
            if error.status != CHANGED or version is None:
                raise
            now, _ = service.get_version(object_id, record_id)
            if all(now.data.get(slug) == value for slug, value in data.items()):
                return now  # an earlier attempt wrote it, and its answer was lost
            self._refuse_changed(now, "the record does not hold all that you wrote")
            raise

    def _refuse_changed(self, now: Record, outcome: str) -> None:
        shown = self.shown
        changed = [slug for slug in {**shown.data, **now.data} if shown.data.get(slug) != now.data.get(slug)]
        if changed or shown.updated_at != now.updated_at:
            slugs = f": {', '.join(changed)}" if changed else ""
            raise RejectedError(
                f"another client changed the record while you edited it{slugs}; {outcome}",
                hint=f"crmctl records edit {self.object} {shown.id} shows it as it is now",
                code="changed_meanwhile",
            )
