"""What a key may do, found out with requests that cannot change anything: reads, and writes to resources that cannot exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crmctl.errors import DeniedError, NotFoundError, RejectedError, ServiceError, UsageError
from crmctl.models.nearest import suggestion
from crmctl.models.scopes import SCOPES

if TYPE_CHECKING:
    from crmctl.client.http.session import Session

NIL = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Probe:
    """One request. A probe of a list must be answered with the list; any other may also be answered with "there is no such thing"."""

    method: str
    path: str
    body: Any = None

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and NIL not in self.path


PROBES: dict[str, Probe] = {
    "objects:read": Probe("GET", "/objects"),
    "objects:write": Probe("PATCH", f"/objects/{NIL}", {}),
    "records:read": Probe("GET", f"/objects/{NIL}/records?limit=1"),
    "records:write": Probe("PATCH", f"/objects/{NIL}/records/{NIL}", {"data": {}}),
    "attributes:read": Probe("GET", f"/objects/{NIL}/attributes"),
    "attributes:write": Probe("PATCH", f"/objects/{NIL}/attributes/{NIL}", {}),
    "activities:read": Probe("GET", "/activities?limit=1"),
    "activities:write": Probe("PATCH", f"/activities/{NIL}", {}),
    "reports:read": Probe("GET", "/reports"),
    "reports:run": Probe("POST", f"/reports/{NIL}/run"),
    "workflows:read": Probe("GET", "/workflows"),
    "workflows:write": Probe("PATCH", f"/workflows/{NIL}", {}),
    "workflows:run": Probe("POST", f"/workflows/{NIL}/run"),
    "members:read": Probe("GET", "/members"),
    "files:write": Probe("POST", "/files/upload-url", {}),
    "webhooks:manage": Probe("GET", "/webhooks"),
}


def check_scope_name(scope: str) -> str:
    """The scope as it is spelled in the specification. Raises UsageError listing the valid ones."""
    folded = scope.strip().lower()
    if folded in SCOPES:
        return folded
    hint = suggestion(folded, SCOPES, f"valid scopes: {', '.join(SCOPES)}")
    raise UsageError(f"there is no scope {scope!r}", hint=hint, code="unknown_scope")


def may(session: Session, scope: str) -> bool | None:
    """Whether the key has the scope; None when what this service answers does not tell.

    Raises DeniedError when the key is not valid at all, RateLimitedError, NetworkError.
    """
    from crmctl.client.http.answers import WEB_PAGE

    probe = PROBES[scope]
    try:
        session.request(probe.method, probe.path, body=probe.body)
    except DeniedError as error:
        if error.status == 403:
            return False
        raise
    except (NotFoundError, RejectedError) as error:
        if probe.is_list or error.status in (405, 408) or error.hint == WEB_PAGE:
            return None
    except ServiceError:
        return None
    return True


def prove_key(session: Session) -> None:
    """Return when the service accepts the key: a read succeeds, or is refused for want of a scope, which only a known key can be.

    Raises DeniedError when it does not, ServiceError when this is no Customer Records Service.
    """
    try:
        session.request("GET", "/objects").json()
    except DeniedError as error:
        if not (error.status == 403 and (error.code == "insufficient_scope" or error.required_scope)):
            raise
