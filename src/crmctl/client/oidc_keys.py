"""API keys from the identity token of a CI job, renewed while crmctl runs."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import KEY_VARIABLE, Credential, check_key, require_credential
from crmctl.config.settings import Paths, Settings, is_loopback, write_private
from crmctl.errors import CrmctlError, DeniedError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json

OIDC = "oidc"
SHARE = 2 / 3
"""The part of its life after which a key is renewed."""

FILE_VARIABLE, TOKEN_VARIABLE = "CRMCTL_ID_TOKEN_FILE", "CRMCTL_ID_TOKEN"
GITHUB_URL, GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
SECONDS = 30.0

_FORM = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
}


def find_key(settings: Settings, environ: Mapping[str, str], paths: Paths, clock: Clock | None = None) -> Credential:
    """Return the key of a profile: CRMCTL_API_KEY, else by its `auth`. Raises what each way raises."""
    if settings.auth.value != OIDC or environ.get(KEY_VARIABLE, "").strip():
        return require_credential(settings, environ, paths)
    return OidcKeys(settings, environ, paths, clock or SystemClock()).current()


@dataclass(frozen=True)
class IdentityToken:
    """A token and where it came from."""

    token: str
    source: str

    @property
    def claims(self) -> Json:
        """The claims, unchecked. Raises UsageError."""
        try:
            part = self.token.split(".")[1]
            claims = jsontext.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (IndexError, ValueError, binascii.Error) as error:
            raise UsageError(f"{self.source} holds no identity token") from error
        return claims if isinstance(claims, dict) else {}


class OidcKeys:
    """Exchanges identity tokens for keys. A key is kept in a private file until it is renewed, because a token works once."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], paths: Paths, clock: Clock) -> None:
        self._settings = settings
        self._environ = environ
        self._clock = clock
        self.base_url, self.origin = settings.require_base_url(), settings.require_origin()
        if not self.base_url.startswith("https://") and not is_loopback(self.base_url):
            raise UsageError(f"identity tokens are not sent without TLS to {self.origin}", hint="use https://")
        name = hashlib.sha256(f"{settings.profile.value} {self.base_url}".encode()).hexdigest()[:16]
        self._file: Path = paths.cache / f"oidc-{name}.json"

    def current(self) -> Credential:
        """Return the kept key, or a new one. Raises DeniedError."""
        try:
            kept = jsontext.loads(self._file.read_text(encoding="utf-8"))
            key, renew_at = check_key(kept["key"]), float(kept["renewAt"])
        except (OSError, ValueError, KeyError, TypeError, CrmctlError):
            return self.renew()
        return self._credential(key, renew_at) if self._clock.now() < renew_at else self.renew()

    def renew(self) -> Credential:
        """Exchange a token for a new key and keep it. Raises DeniedError."""
        token = self.identity_token()
        answer = self._send("POST", f"{self.base_url}/oauth/token", urlencode({**_FORM, "subject_token": token.token}).encode())
        key, seconds = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(key, str) or not isinstance(seconds, int | float):
            hint = "crmctl auth explain shows its claims; the audit log of the service names the rule"
            code = answer.get("error", "no_answer")
            raise DeniedError(f"{self.origin} does not accept the identity token of this job ({code})", hint=hint, code="invalid_grant")
        renew_at = self._clock.now() + SHARE * float(seconds)
        write_private(self._file, jsontext.dumps({"key": key, "renewAt": renew_at}))
        return self._credential(key, renew_at)

    def identity_token(self) -> IdentityToken:
        """Return the job's token: CRMCTL_ID_TOKEN_FILE, GitHub's service for jobs, or CRMCTL_ID_TOKEN. Raises DeniedError."""
        environ = self._environ
        if path := environ.get(FILE_VARIABLE):
            try:
                return IdentityToken(Path(path).read_text(encoding="utf-8").strip(), FILE_VARIABLE)
            except (OSError, UnicodeDecodeError) as error:
                raise DeniedError(f"cannot read {FILE_VARIABLE} {path}: {reason(error)}", code="no_identity") from error
        if (url := environ.get(GITHUB_URL)) and (bearer := environ.get(GITHUB_TOKEN)):
            address = f"{url}{'&' if '?' in url else '?'}audience={quote(self.base_url, safe='')}"
            value = self._send("GET", address, None, ("Authorization", f"bearer {bearer}")).get("value")
            if isinstance(value, str) and value:
                return IdentityToken(value, GITHUB_URL)
            raise DeniedError("GitHub gave this job no identity token", hint="permissions: {id-token: write}", code="no_identity")
        if token := environ.get(TOKEN_VARIABLE, "").strip():
            return IdentityToken(token, TOKEN_VARIABLE)
        hint = f"GitHub: permissions: {{id-token: write}}; GitLab: id_tokens: {{{TOKEN_VARIABLE}: {{aud: ...}}}}; else {FILE_VARIABLE}"
        raise DeniedError("this job has no identity token", hint=hint, code="no_identity")

    def _credential(self, key: str, renew_at: float) -> Credential:
        return Credential(key, OIDC, self.origin, renew=self.renew, renew_at=renew_at)

    def _send(self, method: str, url: str, body: bytes | None, *headers: tuple[str, str]) -> Json:
        from crmctl.client.transport import HttpTransport, Request

        transport = HttpTransport(ca_bundle=self._settings.ca_bundle.value, environ=self._environ)
        kind = (("Content-Type", "application/x-www-form-urlencoded"),) if body is not None else ()
        try:
            response = transport.send(Request(method, url, (("Accept", "application/json"), *kind, *headers), body, SECONDS))
        finally:
            transport.close()
        try:
            document: Any = jsontext.loads(response.body)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else {"error": f"status {response.status}"}
