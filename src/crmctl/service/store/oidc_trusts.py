"""Trusts in the identity tokens of other issuers, and the tokens that were used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import logs
from crmctl.service.store.keys import check_scopes
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, to_micros

SHORTEST, LONGEST = 5 * 60, 24 * 3600

PULL_REQUESTS = {
    "event_name": ("pull_request", "pull_request_target", "pull_request_review", "pull_request_review_comment"),
    "pipeline_source": ("merge_request_event", "external_pull_request_event"),
}
"""Claims of runs that strangers can start. A trust that names the claim decides itself."""

_TRUSTS = Rows(
    "oidc_trust",
    "trust",
    "id, name, issuer, ttl, claims, scopes, development, created_at",
    claims=jsontext.loads,
    scopes=jsontext.loads,
    development=bool,
)


@dataclass(frozen=True)
class Trust:
    """Tokens of `issuer` whose claims equal `claims` get keys with these scopes for `ttl` seconds. A `development` issuer may be this
    machine, without TLS."""

    name: str
    issuer: str
    claims: dict[str, str]
    scopes: Sequence[str]
    ttl: int
    development: bool = False

    @classmethod
    def of(cls, wire: Json) -> Trust:
        return cls(*(wire[name] for name in ("name", "issuer", "claims", "scopes", "ttl", "development")))

    def mismatch(self, claims: Mapping[str, Any]) -> str | None:
        """Return the first rule that the claims of a token break."""
        if claims.get("iss") != self.issuer:
            return f"{self.name}: iss is not {self.issuer}"
        for name, expected in self.claims.items():
            actual = claims.get(name)
            text = str(actual).lower() if isinstance(actual, bool) else str(actual)
            # The workflow is followed by the branch it is taken from.
            fits = text.startswith(f"{expected}@") if name == "workflow_ref" and "@" not in expected else text == expected
            if actual is None or isinstance(actual, dict | list) or not fits:
                return f"{self.name}: {name} is not {expected}"
        for name, values in PULL_REQUESTS.items():
            if name not in self.claims and claims.get(name) in values:
                return f"{self.name}: {name} is {claims[name]}"
        return None


def add_trust(tx: Tx, trust: Trust, **stamp: Unpack[Stamp]) -> Json:
    """Store a trust. Raises BadRequest for one that is too wide, Conflict for a name in use."""
    require_name(trust.name, "name")
    if _TRUSTS.find(tx, "name = ?", trust.name) is not None:
        raise Conflict(f"there is a trust called {trust.name!r} already", {"field": "name"})
    if not any(name.endswith("_id") for name in trust.claims):
        raise BadRequest("one claim must be an immutable id, such as repository_id or project_id", {"field": "claims"})
    check_scopes(trust.scopes)
    if not SHORTEST <= trust.ttl <= LONGEST:
        raise BadRequest("the key must last from 5 minutes to 24 hours", {"field": "ttl"})
    row: Json = {"id": stamp["ids"](), "name": trust.name, "issuer": trust.issuer, "ttl": trust.ttl}
    row |= {"claims": jsontext.dumps(trust.claims), "scopes": jsontext.dumps(sorted(trust.scopes))}
    insert(tx, "oidc_trust", row | {"development": int(trust.development), "created_at": to_micros(stamp["now"])})
    logs.note(tx, "trust.added", row["id"], {"name": trust.name, "issuer": trust.issuer, "claims": trust.claims}, now=stamp["now"])
    return _TRUSTS.get(tx, row["id"])


def list_trusts(tx: Tx) -> list[Json]:
    return _TRUSTS.all(tx, "ORDER BY created_at, id")


def remove_trust(tx: Tx, name: str, *, now: float) -> Json:
    """Remove a trust; its keys work until they expire. Raises NotFound."""
    wire = _TRUSTS.find(tx, "name = ?", name)
    if wire is None:
        raise NotFound(f"there is no trust called {name!r}")
    tx.execute("DELETE FROM oidc_trust WHERE id = ?", (wire["id"],))
    logs.note(tx, "trust.removed", wire["id"], {"name": name}, now=now)
    return wire


def use_token(tx: Tx, issuer: str, token_id: str, expires_at: float, *, now: float) -> bool:
    """Note that a token was used. Returns False if it was used before. Forgets expired ones."""
    tx.execute("DELETE FROM used_token WHERE expires_at < ?", (to_micros(now),))
    digest = hashlib.sha256(f"{issuer}\n{token_id}".encode(errors="surrogatepass")).hexdigest()
    row = (digest, to_micros(expires_at))
    return tx.execute("INSERT INTO used_token (digest, expires_at) VALUES (?, ?) ON CONFLICT DO NOTHING", row) == 1
