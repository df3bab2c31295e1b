"""Pre-signed uploads (specification 4.8)."""

from __future__ import annotations

from crmctl.models.base import Resource


class UploadUrl(Resource):
    """`signed_url` takes one PUT without the API key; `public_url` is where the file is then found."""

    signed_url: str
    public_url: str | None = None
