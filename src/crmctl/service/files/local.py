"""Uploads to this service itself: addresses signed for one file, a time and a size, and what such a signature allows."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from crmctl.service.faults import Forbidden
from crmctl.service.files.storage import UPLOAD_SECONDS, Upload, url_path
from crmctl.service.store.service_values import UPLOADS, signing_key
from crmctl.service.store.tx import Tx


class LocalStorage:
    """`address` is the service's own; `limit` the most bytes of a file."""

    def __init__(self, address: str, limit: int) -> None:
        self._address = address
        self._limit = limit

    def upload_url(self, tx: Tx, bucket: str, path: str, *, now: float) -> Upload:
        expires = int(now) + UPLOAD_SECONDS
        signature = _signature(signing_key(tx, UPLOADS), bucket, path, expires, self._limit)
        public_url = f"{self._address}/files/{url_path(bucket, path)}"
        return Upload(f"{public_url}?expires={expires}&limit={self._limit}&signature={signature}", public_url)


def permitted_size(tx: Tx, bucket: str, path: str, query: Mapping[str, str], *, now: float) -> int:
    """The most bytes that the signature in this query allows to be PUT at this place now. Raises Forbidden."""
    expires, limit = query.get("expires", ""), query.get("limit", "")
    if not (re.fullmatch("[0-9]{1,12}", expires, re.ASCII) and re.fullmatch("[0-9]{1,15}", limit, re.ASCII)):
        raise Forbidden("this address is not signed for an upload", error="invalid_signature")
    expected = _signature(signing_key(tx, UPLOADS), bucket, path, int(expires), int(limit))
    if not hmac.compare_digest(expected.encode(), query.get("signature", "").encode(errors="replace")):
        raise Forbidden("the signature does not fit this address", error="invalid_signature")
    if now >= int(expires):
        raise Forbidden("this upload address has expired; ask for a new one", error="expired_signature")
    return int(limit)


def _signature(key: bytes, bucket: str, path: str, expires: int, limit: int) -> str:
    # A length before each name: no other pair of names gives the same text.
    text = f"PUT\n{len(bucket)}:{bucket}\n{len(path)}:{path}\n{expires}\n{limit}"
    return hmac.new(key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
