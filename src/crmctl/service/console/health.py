"""The page of the service's health: sizes, queues, slow requests, and the backup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crmctl.errors import CrmctlError
from crmctl.models.numbers import size_text
from crmctl.service.backup.backup import make_backup
from crmctl.service.console.pages import NavigationLink, Pages
from crmctl.service.console.visits import ConsolePage, Download, Redirect, Visit, counted_up_to
from crmctl.service.context import DAY
from crmctl.service.faults import NotFound, Unavailable
from crmctl.service.store import change_log, deliveries, logs, webhooks
from crmctl.service.store.members import MemberRole
from crmctl.service.store.tx import Tx, to_micros, to_wire

BACKUP_FILE = "console.backup"
MOST_SLOW, PIECE = 10, 1 << 20


def add_pages(pages: Pages) -> None:
    """Add the page, and the making and download of a backup."""
    pages.navigation.append(NavigationLink("Administration", "/health", "Health", MemberRole.ADMIN))

    @pages.get("/health", needs=MemberRole.ADMIN, is_slow=True)
    def show_health(tx: Tx, visit: Visit) -> ConsolePage:
        counts = [deliveries.count_deliveries(tx, endpoint["id"]) for endpoint in webhooks.list_endpoints(tx)]
        backup = _backup_file(visit)
        made = backup.stat() if backup.is_file() else None
        values = {
            "facts": {
                "Database": size_text(int(visit.context.engine.figures()["database_bytes"])),
                "Events waiting": counted_up_to(*change_log.count_waiting(tx)),
                "Deliveries pending": f"{sum(count[deliveries.PENDING] for count in counts):,}",
                "Deliveries failed": f"{sum(count[deliveries.FAILED] for count in counts):,}",
            },
            "slow": logs.slowest(tx, visit.now() - DAY, MOST_SLOW),
            "backup": {"at": to_wire(to_micros(made.st_mtime)), "size": made.st_size} if made else None,
        }
        return ConsolePage("health.html", values)

    @pages.post("/health/backup", needs=MemberRole.ADMIN, in_transaction=False)
    def back_up(visit: Visit) -> Redirect:
        context = visit.context
        try:
            backup = make_backup(context.engine, context.settings, _backup_file(visit), context.clock)
        except CrmctlError as error:
            raise Unavailable(f"no backup was made: {error.message}") from error
        context.engine.write(lambda tx: logs.note(tx, "backup.made", BACKUP_FILE, backup.wire(), now=visit.now()), by=visit.actor)
        return Redirect("/health", "backed-up")

    @pages.get("/health/backup", needs=MemberRole.ADMIN)
    def download_backup(_tx: Tx, visit: Visit) -> Download:
        backup = _backup_file(visit)
        if not backup.is_file():
            raise NotFound("no backup was made here yet")
        at = to_wire(to_micros(backup.stat().st_mtime))[:16].replace(":", "-")
        return Download(_pieces(backup), "application/octet-stream", f"crmctl-{at}.backup")


def _backup_file(visit: Visit) -> Path:
    return visit.context.settings.data_dir / BACKUP_FILE


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
