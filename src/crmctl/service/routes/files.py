"""Files (specification 4.8): addresses for uploads. The upload itself goes to the storage and takes no API key."""
# ruff: noqa: N815 - the fields are named as on the wire

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from crmctl.service.context import Context
from crmctl.service.files.configured_storage import open_storage
from crmctl.service.files.names import BUCKET, MAX_PATH, check_bucket, normalise_path
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.shapes import Body
from crmctl.service.store.tx import Tx

Url = Annotated[str, Field(json_schema_extra={"format": "uri"})]


class UploadRequest(Body):
    path: Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_PATH})]
    bucket: Annotated[str, Field(json_schema_extra={"pattern": f"^{BUCKET}$"})]


class UploadUrl(BaseModel):
    signedUrl: Url
    publicUrl: Url


def router(context: Context) -> Endpoints:
    """The one endpoint of files."""
    api = Endpoints(context, "files")
    storage = open_storage(context.settings)

    @api.add("POST", "/files/upload-url", answers=UploadUrl, scope="files:write", writes=False, body=UploadRequest)
    def create_upload_url(tx: Tx, call: Call) -> Any:
        """Get an address that takes a file by PUT.

        It works for a quarter of an hour and for this file alone. Send a Content-Type that fits the file, and no API key.
        """
        bucket, path = check_bucket(call.body["bucket"]), normalise_path(call.body["path"])
        upload = storage.upload_url(tx, bucket, path, now=call.now())
        return {"signedUrl": upload.signed_url, "publicUrl": upload.public_url}

    return api
