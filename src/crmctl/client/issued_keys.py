"""API keys that a service issues: for the identity token of a CI job, renewed while crmctl runs, and for a login that a member approves."""

from __future__ import annotations

import base64
import binascii
import hashlib
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import KEY_VARIABLE, Credential, check_key, require_credential
from crmctl.config.settings import Paths, Settings, is_loopback, origin_of, write_private
from crmctl.errors import CrmctlError, DeniedError, NetworkError, RejectedError, ServiceError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json

OIDC = "oidc"
SHARE = 2 / 3
"""The part of its life after which a key is renewed."""

FILE_VARIABLE, TOKEN_VARIABLE = "CRMCTL_ID_TOKEN_FILE", "CRMCTL_ID_TOKEN"
GITHUB_URL, GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
SECONDS = 30.0
FORM_TYPE = ("Content-Type", "application/x-www-form-urlencoded")

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
LEAST_WAIT = 0.1
"""Seconds between two polls, whatever the service says."""
MOST_SECONDS = 86_400.0
WAITING = ("authorization_pending", "slow_down")
REFUSALS = {"access_denied": "the login was denied", "expired_token": "nobody approved the login in time"}

BUSY = (429, 502, 503, 504)
"""Statuses that pass by themselves."""

_FORM = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
}


def find_key(settings: Settings, environ: Mapping[str, str], paths: Paths, clock: Clock | None = None) -> Credential:
    """Return the key of a profile: CRMCTL_API_KEY, else by its `auth`. Raises what each way raises."""
    if settings.auth.value != OIDC or environ.get(KEY_VARIABLE, "").strip():
        return require_credential(settings, environ, paths)
    return OidcKeys(settings, environ, paths, clock or SystemClock()).current()


@frozen
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
        self._environ = environ
        self._send = partial(_send, settings, environ)
        self._clock = clock
        self.base_url, self.origin = _trusted_address(settings, "identity tokens are not sent"), settings.require_origin()
        name = hashlib.sha256(f"{settings.profile.value} {self.base_url}".encode()).hexdigest()[:16]
        self._file: Path = paths.cache / f"oidc-{name}.json"
        # Another job of the same runner has another identity, and must not get this one's key.
        secret = environ.get(FILE_VARIABLE) or environ.get(GITHUB_TOKEN) or environ.get(TOKEN_VARIABLE, "")
        self._identity = secret and hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()

    def current(self) -> Credential:
        """Return the kept key, or a new one. Raises DeniedError."""
        with suppress(OSError, ValueError, KeyError, TypeError, CrmctlError):
            kept = jsontext.loads(self._file.read_text(encoding="utf-8"))
            is_own = not self._identity or kept["identity"] == self._identity
            if is_own and self._clock.now() < (renew_at := float(kept["renewAt"])):
                return self._credential(check_key(kept["key"]), renew_at)
        return self.renew()

    def renew(self) -> Credential:
        """Exchange a token for a new key and keep it. Raises DeniedError."""
        token = self.identity_token()
        answer = self._send(f"{self.base_url}/oauth/token", {**_FORM, "subject_token": token.token})
        key, seconds = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(key, str) or not isinstance(seconds, int | float):
            hint = "crmctl auth explain shows its claims; the audit log of the service names the rule"
            code = answer.get("error", "no_answer")
            raise DeniedError(f"{self.origin} does not accept the identity token of this job ({code})", hint=hint, code="invalid_grant")
        renew_at = self._clock.now() + SHARE * float(seconds)
        write_private(self._file, jsontext.dumps({"key": key, "renewAt": renew_at, "identity": self._identity}))
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
            value = self._send(address, None, ("Authorization", f"bearer {bearer}")).get("value")
            if isinstance(value, str) and value:
                return IdentityToken(value, GITHUB_URL)
            raise DeniedError("GitHub gave this job no identity token", hint="permissions: {id-token: write}", code="no_identity")
        if token := environ.get(TOKEN_VARIABLE, "").strip():
            return IdentityToken(token, TOKEN_VARIABLE)
        hint = f"GitHub: permissions: {{id-token: write}}; GitLab: id_tokens: {{{TOKEN_VARIABLE}: {{aud: ...}}}}; else {FILE_VARIABLE}"
        raise DeniedError("this job has no identity token", hint=hint, code="no_identity")

    def _credential(self, key: str, renew_at: float) -> Credential:
        return Credential(key, OIDC, self.origin, renew=self.renew, renew_at=renew_at)


def log_in_on_device(settings: Settings, environ: Mapping[str, str], clock: Clock, show: Callable[[str, str], None]) -> str:
    """Return the key of a login that a member approves in the console. `show` tells the user the address and the code. Raises DeniedError
    for one that is denied or not answered in time, RejectedError if the service has no such logins."""
    base_url = _trusted_address(settings, "keys are not asked for")
    form = {"client_id": "crmctl", "host": platform.node()}
    authorization = _send(settings, environ, f"{base_url}/oauth/device_authorization", form)
    device_code, user_code = authorization.get("device_code"), authorization.get("user_code")
    page = authorization.get("verification_uri_complete") or authorization.get("verification_uri")
    if not (isinstance(device_code, str) and isinstance(user_code, str) and isinstance(page, str)):
        problem = authorization.get("message") or f"{base_url} has no logins of devices"
        raise RejectedError(str(problem), hint="crmctl auth login asks for a key", code="no_device_login")
    show(page, user_code)
    wait, until = _seconds(authorization.get("interval"), 5), clock.monotonic() + _seconds(authorization.get("expires_in"), 600)
    form, error = {"client_id": "crmctl", "grant_type": DEVICE, "device_code": device_code}, WAITING[0]
    while error in WAITING:
        if clock.monotonic() >= until:
            error = "expired_token"
            break
        clock.sleep(max(wait, LEAST_WAIT))
        try:
            answer = _send(settings, environ, f"{base_url}/oauth/token", form)
        except (NetworkError, ServiceError):
            # The answer may have held the key, which cannot be asked for again: the service then refuses the next poll.
            wait *= 2
            continue
        if isinstance(key := answer.get("access_token"), str):
            return key
        error = answer.get("error", "no key")
        wait += 5 * (error == "slow_down")
    raise DeniedError(REFUSALS.get(error, f"the login failed ({error})"), hint="nothing was stored; start again", code=error)


def _seconds(value: Any, default: float) -> float:
    """Return a service's number of seconds, the default if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < MOST_SECONDS else default


def _trusted_address(settings: Settings, problem: str) -> str:
    """Return the base URL. Raises UsageError for one without TLS on another machine."""
    base_url = settings.require_base_url()
    if not base_url.startswith("https://") and not is_loopback(base_url):
        raise UsageError(f"{problem} without TLS to {settings.require_origin()}", hint="use https://")
    return base_url


def _send(settings: Settings, environ: Mapping[str, str], url: str, form: Mapping[str, str] | None, *headers: tuple[str, str]) -> Json:
    """Return the answer to a form, or to a GET without one. A refusal has an `error`. Raises NetworkError, and ServiceError for a service
    that is busy."""
    from crmctl.client.transport import Request, send_once

    method, body, kind = ("GET", None, ()) if form is None else ("POST", urlencode(form).encode(), (FORM_TYPE,))
    request = Request(method, url, (("Accept", "application/json"), *kind, *headers), body, SECONDS)
    response = send_once(request, ca_bundle=settings.ca_bundle.value, environ=environ)
    try:
        document: Any = jsontext.loads(response.body)
    except ValueError:
        document = None
    answer: Json = document if isinstance(document, dict) else {}
    if response.status in BUSY:
        problem = answer.get("message") or f"{origin_of(url)} gives no keys at the moment (status {response.status})"
        raise ServiceError(str(problem), code="unavailable", status=response.status, retryable=True)
    if response.status >= 400 and not isinstance(answer.get("error"), str):
        answer["error"] = f"status {response.status}"
    return answer
