"""Pages of the logs: requests that were answered, and what was done to schema, members, keys and webhooks."""

from __future__ import annotations

from urllib.parse import urlencode

from crmctl.models import jsontext
from crmctl.service.console.pages import ConsolePage, Pages, Visit
from crmctl.service.roles import MemberRole
from crmctl.service.settings import DAY
from crmctl.service.store import audit_log, keys, request_log
from crmctl.service.store.record_pages import LOOKED
from crmctl.service.store.request_log import RequestFilter
from crmctl.service.store.tx import Tx

PER_PAGE = 50
SUBJECTS = ("object", "attribute", "member", "key", "endpoint", "report", "workflow")


def add_pages(pages: Pages) -> None:
    """Both logs."""

    @pages.get("/requests", needs=MemberRole.ADMIN, is_slow=True)
    def show_requests(tx: Tx, visit: Visit) -> ConsolePage:
        page, query = visit.number("page", 1), visit.query
        asked = {name: query.get(name, "").strip()[:200] for name in ("key", "id", "status")}
        status = int(asked["status"]) if asked["status"] in ("400", "500") else None
        is_complete = query.get("all") == "1" or not (asked["key"] or asked["id"])
        since = None if is_complete else request_log.moment_of_newest(tx, LOOKED)
        wanted = RequestFilter(asked["key"] or None, asked["id"] or None, status, since)
        found = request_log.list_requests(tx, wanted, PER_PAGE + 1, (page - 1) * PER_PAGE)
        texts = {name: text for name, text in (asked | {"all": "1" if query.get("all") == "1" else ""}).items() if text}
        values = {
            "section": "requests",
            "looked": LOOKED if since is not None else None,
            "requests": found[:PER_PAGE],
            "keys": keys.list_keys(tx),
            "asked": asked,
            "query": "".join(f"{pair}&" for pair in urlencode(texts).split("&") if pair),
            "page": page,
            "has_older": len(found) > PER_PAGE,
            "kept": round(visit.context.settings.kept.requests / DAY),
        }
        return ConsolePage("requests.html", values)

    @pages.get("/audit", needs=MemberRole.ADMIN)
    def show_audit(tx: Tx, visit: Visit) -> ConsolePage:
        page = visit.number("page", 1)
        chosen = visit.query.get("about", "") if visit.query.get("about", "") in SUBJECTS else ""
        found = audit_log.list_entries(tx, PER_PAGE + 1, (page - 1) * PER_PAGE, action=chosen or None)
        entries = [entry | {"details": jsontext.dumps(entry["about"]) if entry["about"] else ""} for entry in found[:PER_PAGE]]
        values = {"section": "audit", "entries": entries, "subjects": SUBJECTS, "chosen": chosen, "page": page}
        return ConsolePage(
            "audit.html", values | {"has_older": len(found) > PER_PAGE, "kept": round(visit.context.settings.kept.audit / DAY)}
        )
