"""Short-lived API keys for an issuer's token (RFC 8693) or for a device that a member approves (RFC 8628), and the metadata of RFC 8414.

The only importer of PyJWT.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.http.edge import client_address
from crmctl.service.http.endpoint import NamedRoute, read_body
from crmctl.service.http.json_answers import JsonAnswer, rate_limited
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import LOOPBACK, CallFailedError, TargetGuard
from crmctl.service.store import keys, logs, short_lived_keys
from crmctl.service.store.short_lived_keys import Trust
from crmctl.service.store.tx import Tx

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
KEY_TYPE = "urn:ietf:params:oauth:token-type:access_token"
TOKEN_TYPES = ("urn:ietf:params:oauth:token-type:id_token", "urn:ietf:params:oauth:token-type:jwt")
ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY = 60
LONGEST = 16 * 1024
Time = Annotated[float, Field(gt=0, lt=10**12)]  # in Unix seconds
KEPT_SECONDS = 3600.0  # for the keys of an issuer
AGAIN_SECONDS = 60.0  # between two readings for unknown key ids
MOST_BODY = 32 * 1024
WAIT = 20.0  # seconds that a request of a device may wait for its turn
AT_ONCE = 2  # exchanges: issuers that do not answer must not hold up requests
MOST_NOTED = 60  # refusals in a minute
MOST_LOGINS, LOGINS_SECONDS = 30, 900  # of devices from one address
NOTED_CLAIMS = ("repository", "repository_id", "project_path", "project_id", "run_id", "pipeline_id", "sha", "ref", "actor", "user_login")


def routes(context: Context) -> list[NamedRoute]:
    endpoint = TokenEndpoint(context)
    return [
        NamedRoute("/oauth/token", endpoint.give_key, methods=["POST"]),
        NamedRoute("/oauth/device_authorization", endpoint.start_login, methods=["POST"]),
        NamedRoute("/.well-known/oauth-authorization-server", endpoint.show_metadata, methods=["GET"]),
    ]


class TokenEndpoint:
    """Gives keys. The caller of a refused exchange learns `invalid_grant` and nothing else."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys = IssuerKeys(self._read, context.clock.monotonic)
        self._exchanges = asyncio.Semaphore(AT_ONCE)

    async def show_metadata(self, _request: Request) -> Response:
        address = self._context.settings.address
        endpoints = {"token_endpoint": f"{address}/oauth/token", "device_authorization_endpoint": f"{address}/oauth/device_authorization"}
        abilities = {"grant_types_supported": [EXCHANGE, DEVICE], "token_endpoint_auth_methods_supported": ["none"]}
        return JsonAnswer({"issuer": address, **endpoints, **abilities, "response_types_supported": []})

    async def give_key(self, request: Request) -> Response:
        """Exchange a token, or answer the poll of a device."""
        form, context = await self._read_form(request), self._context
        if form.get("grant_type") == DEVICE:
            code = form.get("device_code", "")
            return await self._write(request, lambda tx: short_lived_keys.poll_login(tx, code, ids=context.ids, now=context.clock.now()))
        async with self._exchanges:
            return _answer(await asyncio.to_thread(self._exchange, form))

    async def start_login(self, request: Request) -> Response:
        """Start the login of a device. Raises a 429 for an address that starts too many."""
        context, form = self._context, await self._read_form(request)
        now, address = context.clock.now(), client_address(request.scope) or ""
        if not form.get("client_id"):
            return _answer({"error": "invalid_request"})
        host = form.get("host", "") if re.fullmatch("[A-Za-z0-9._-]{1,100}", form.get("host", "")) else "unknown"
        take = context.engine.rate_windows().take
        state = await asyncio.to_thread(take, f"device from {address}", MOST_LOGINS, LOGINS_SECONDS, now)
        if not state.allowed:
            raise rate_limited(state.reset - now, "too many logins were started from this address")

        def start(tx: Tx) -> Json:
            device_code, user_code = short_lived_keys.start_login(tx, host, address, now=now)
            page = f"{context.settings.address}/console/device"
            codes = {"device_code": device_code, "user_code": user_code}
            pages = {"verification_uri": page, "verification_uri_complete": f"{page}?code={user_code}"}
            return codes | pages | {"expires_in": short_lived_keys.WAIT_SECONDS, "interval": short_lived_keys.INTERVAL}

        return await self._write(request, start)

    async def _read_form(self, request: Request) -> dict[str, str]:
        raw = await read_body(request, MOST_BODY, self._context.settings.body_timeout)
        return {name: values[-1] for name, values in parse_qs(raw.decode("latin-1")).items()}

    async def _write(self, request: Request, change: Callable[[Tx], Json]) -> Response:
        context = self._context
        async with context.work.writes.place(client_address(request.scope) or "", WAIT):
            return _answer(await context.work.run(lambda: context.engine.write(change, by=logs.SERVICE)))

    def _exchange(self, form: Mapping[str, str]) -> Json:
        if form.get("grant_type") != EXCHANGE:
            return {"error": "unsupported_grant_type"}
        if not form.get("subject_token") or form.get("subject_token_type") not in TOKEN_TYPES:
            return {"error": "invalid_request"}
        context, engine, now = self._context, self._context.engine, self._context.clock.now()
        try:
            trust, known, claims = check_token(form["subject_token"], context.settings.address, engine.read(_trusts), self._keys, now=now)
            run = str(claims.get("run_id") or claims.get("pipeline_id") or "")
            name = f"{trust.name} {run}"[:200] if run.isprintable() and run else trust.name
            about = {"trust": trust.name} | {name: str(claims[name])[:200] for name in NOTED_CLAIMS if name in claims}

            def exchange(tx: Tx) -> Json:
                if trust not in _trusts(tx):
                    raise TokenRefused(f"{trust.name}: it was removed meanwhile")
                digest = keys.secret_hash(f"{trust.issuer}\n{known.jti}")
                if not keys.use_once(tx, digest, math.ceil(known.exp) + LEEWAY, now=now):
                    raise TokenRefused("it was used before")
                scopes = frozenset(trust.scopes)
                key, secret = keys.create_key(tx, name=name, scopes=scopes, expires_at=now + trust.ttl, ids=context.ids, now=now)
                logs.note(tx, "token.exchanged", key.id, about, now=now)
                return short_lived_keys.key_answer(secret, trust.ttl, scopes) | {"issued_token_type": KEY_TYPE}

            return engine.write(exchange, by=logs.SERVICE)
        except TokenRefused as refused:
            rule = {"rule": str(refused)[:500]}
            with suppress(Unavailable):
                if engine.rate_windows().take("refused tokens", MOST_NOTED, 60, now).allowed:
                    engine.write(lambda tx: logs.note(tx, "token.refused", "", rule, now=now), by=logs.SERVICE)
            return {"error": "invalid_grant"}

    def _read(self, address: str) -> bytes:
        """Read an issuer's document: through TLS, or from this machine for a trust of development."""
        is_local = any(
            trust.development and address.startswith(trust.issuer.rstrip("/") + "/") for trust in self._context.engine.read(_trusts)
        )
        if not is_local and not address.startswith("https://"):
            raise CallFailedError("the address has no TLS")
        return Caller(TargetGuard(LOOPBACK if is_local else ())).get(address)


def _trusts(tx: Tx) -> list[Trust]:
    return [Trust.model_validate(wire) for wire in short_lived_keys.list_trusts(tx)]


def _answer(document: Json) -> Response:
    return JsonAnswer(document, 400 if "error" in document else 200, {"Cache-Control": "no-store"})


class TokenRefused(Exception):
    """The message names the rule that failed. It goes to the audit log, never to the caller."""


class IssuerKeys:
    """Keeps the keys of each issuer for an hour; thread-safe. `read` returns the body of a GET and raises CallFailedError."""

    def __init__(self, read: Callable[[str], bytes], monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, dict[str, Json]]] = {}

    def find(self, issuer: str, key_id: str) -> Json:
        with self._lock:
            at, keys = self._kept.get(issuer, (-KEPT_SECONDS, {}))
            age = self._monotonic() - at
            if age >= KEPT_SECONDS or (key_id not in keys and age >= AGAIN_SECONDS):
                # Noted before the reading, so that an issuer that does not answer is not asked again at once.
                self._kept[issuer] = (self._monotonic(), {} if age >= KEPT_SECONDS else keys)
                keys = self._fetch(issuer)
                self._kept[issuer] = (self._monotonic(), keys)
        if key_id not in keys:
            raise TokenRefused("the issuer has no key with this id")
        return keys[key_id]

    def _fetch(self, issuer: str) -> dict[str, Json]:
        """Return the keys of an issuer by their ids."""
        try:
            about = jsontext.loads(self._read(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
            address = about["jwks_uri"]
            if about["issuer"] != issuer or urlsplit(address).scheme != urlsplit(issuer).scheme:
                raise TokenRefused("the issuer's metadata does not fit it")
            return {key["kid"]: key for key in jsontext.loads(self._read(address))["keys"] if "kid" in key}
        except (CallFailedError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise TokenRefused(f"the issuer's keys cannot be read: {reason(error)}") from error


class TokenClaims(BaseModel, strict=True):
    aud: str | list[str]
    exp: Time
    iat: Time
    nbf: Time | None = None
    jti: str


def check_token(token: str, audience: str, trusts: Sequence[Trust], keys: IssuerKeys, *, now: float) -> tuple[Trust, TokenClaims, Json]:
    """Return the trust that accepts a token, and the token's claims. Raises TokenRefused naming the rule that failed."""
    import jwt

    try:
        unchecked = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefused("it is no signed token") from None
    header, claims = unchecked["header"], unchecked["payload"]
    if len(token) > LONGEST:
        raise TokenRefused("it is too long")
    candidates = [trust for trust in trusts if trust.issuer == claims.get("iss")]
    if not candidates:
        raise TokenRefused("no trust names its issuer")
    if header.get("alg") not in ALGORITHMS or "crit" in header:
        raise TokenRefused("its algorithm is not accepted")
    try:
        key = jwt.PyJWK(keys.find(candidates[0].issuer, header.get("kid") or ""))
        # Only with the algorithm of the key, whatever the token says. PyJWT would check times by the machine's clock.
        jwt.PyJWS().decode(token, key, algorithms=[key.algorithm_name])
        known = TokenClaims.model_validate(claims)
    except ValidationError as error:
        raise TokenRefused(f"its {error.errors()[0]['loc'][0]} is missing or malformed") from None
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise TokenRefused(reason(error)) from error
    if key.public_key_use not in (None, "sig"):
        raise TokenRefused("its key is for another use")
    if known.aud not in (audience, [audience]):
        raise TokenRefused("its audience is another service")
    if known.exp + LEEWAY <= now:
        raise TokenRefused("it has expired")
    if max(known.iat, known.nbf or 0) - LEEWAY > now:
        raise TokenRefused("it is not valid yet")
    problems = [trust.mismatch(claims) for trust in candidates]
    if None not in problems:
        raise TokenRefused("; ".join(map(str, problems)))
    return candidates[problems.index(None)], known, claims
