"""Objects: the data structures of an organisation (specification 2.1)."""

from __future__ import annotations

from crmctl.models.base import Resource


class Object(Resource):
    id: str
    slug: str | None = None
    type: str | None = None
    plural_name: str | None = None
    singular_name: str | None = None
    description: str | None = None
    is_active: bool | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def is_standard(self) -> bool:
        """Standard objects can be neither changed nor deleted."""
        return self.type == "standard"
