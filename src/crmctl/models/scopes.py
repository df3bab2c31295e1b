"""The sixteen scopes an API key can hold (specification section 5)."""

from __future__ import annotations

SCOPES: dict[str, str] = {
    "objects:read": "read objects",
    "objects:write": "create, update, delete objects",
    "records:read": "read records",
    "records:write": "create, update, delete records",
    "attributes:read": "read attributes",
    "attributes:write": "create, update, delete attributes",
    "activities:read": "read activities",
    "activities:write": "create, update, delete activities",
    "reports:read": "read reports",
    "reports:run": "run reports",
    "workflows:read": "read workflows",
    "workflows:write": "update workflows",
    "workflows:run": "run workflows",
    "members:read": "read organization members",
    "files:write": "upload files",
    "webhooks:manage": "manage webhooks",
}
