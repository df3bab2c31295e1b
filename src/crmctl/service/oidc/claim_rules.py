"""Compare the claims of a token with a trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crmctl.service.store.oidc_trusts import Trust

PULL_REQUESTS = {"event_name": ("pull_request", "pull_request_target", "pull_request_review"), "pipeline_source": ("merge_request_event",)}
"""Claims of runs that strangers can start. A trust that names the claim decides itself."""


def mismatch(claims: Mapping[str, Any], trust: Trust) -> str | None:
    """Return the first rule of a trust that the claims break."""
    if claims.get("iss") != trust.issuer:
        return f"{trust.name}: iss is not {trust.issuer}"
    for name, expected in trust.claims.items():
        actual = claims.get(name)
        text = str(actual).lower() if isinstance(actual, bool) else str(actual)
        # The workflow is followed by the branch it is taken from.
        fits = text.startswith(f"{expected}@") if name == "workflow_ref" and "@" not in expected else text == expected
        if actual is None or isinstance(actual, dict | list) or not fits:
            return f"{trust.name}: {name} is not {expected}"
    for name, values in PULL_REQUESTS.items():
        if name not in trust.claims and claims.get(name) in values:
            return f"{trust.name}: {name} is {claims[name]}"
    return None
