"""Reports and workflows, which the interface cannot create, and a saved delivery."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import run_crmctl
from tests.support.service import RunningService

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw=="
DEFINITIONS = """
reports:
  - {name: Deals by stage, object: deals, groupBy: stage, measures: [{function: count}]}
  - {name: All people, object: people, columns: [email], limit: 1000}
workflows:
  - name: Greet new people
    object: people
    trigger: record/created
    enabled: true
    conditions: []
    actions:
      - {type: createActivity, title: "Say hello"}
  - name: Asleep
    object: people
    trigger: record/created
    enabled: false
    conditions: []
    actions:
      - {type: createActivity, title: "Never"}
"""


def load_definitions(service: RunningService, text: str = DEFINITIONS) -> None:
    """Load reports and workflows into a running service."""
    Path("definitions.yaml").write_text(text, encoding="utf-8")
    run_crmctl("service", "load", "definitions.yaml", "--data", service.data_dir).ok()


def saved_delivery() -> tuple[dict[str, str], bytes]:
    """Return headers and body of the help's example, signed with SECRET."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,/Xy7FLfFISa1TZH7WLT+0x/orG5MlcutAFOpVan3/00=",
    }
    return headers, b'{"test": 2432232314}'
