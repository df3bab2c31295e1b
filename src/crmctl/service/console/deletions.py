"""Deleting what an administrator has defined: a page that says what goes with it, and the button."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.roles import MemberRole
from crmctl.service.store.tx import Tx


@dataclass(frozen=True)
class Deletable:
    """`goes_too` says what is deleted with it, and what stays."""

    noun: str
    get: Callable[[Tx, str], dict[str, Any]]
    delete: Callable[[Tx, str], object]
    goes_too: Callable[[Tx, str], str]

    def add_pages(self, pages: Pages) -> None:
        section, path = f"{self.noun}s", f"/{self.noun}s/{{id:uuid}}/delete"

        @pages.get(path, needs=MemberRole.ADMIN)
        def confirm_delete(tx: Tx, visit: Visit) -> ConsolePage:
            known = self.get(tx, visit.id("id"))
            place = f"/{section}/{known['id']}"
            title, text = f"Delete {known['name']}", self.goes_too(tx, known["id"])
            values = {"section": section, "title": title, "text": text, "action": f"{place}/delete", "back": place}
            return ConsolePage("confirm.html", values | {"button": f"Delete the {self.noun}"})

        @pages.post(path)
        def delete(tx: Tx, visit: Visit) -> Redirect:
            self.delete(tx, visit.id("id"))
            return Redirect(f"/{section}", f"{self.noun}-deleted")
