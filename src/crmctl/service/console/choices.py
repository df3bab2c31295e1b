"""A question of a form that is answered by everything, or by single boxes. What is ticked counts; more than that is never granted."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.service.console.pages import Visit
from crmctl.service.faults import BadRequest


@dataclass(frozen=True)
class BoxChoice:
    """Radio buttons called `field` with the values `everything` and `only`, and boxes called `box`; `one` and `all` name them in errors."""

    field: str
    everything: str
    only: str
    box: str
    one: str
    all: str

    def read(self, visit: Visit) -> list[str] | None:
        """The boxes, None for everything. Raises BadRequest for an answer that says both, or nothing."""
        said, ticked = set(visit.chosen(self.field)), visit.chosen(self.box)
        if said == {self.everything} and not ticked:
            return None
        if said <= {self.only} and ticked:
            return ticked
        if self.everything in said:
            raise BadRequest(f"both {self.all} and single ones are chosen; choose one or the other", {"field": self.field})
        either = "" if said == {self.only} else f", or {self.all}"
        raise BadRequest(f"choose at least one {self.one}{either}", {"field": self.field})

    def shown(self, visit: Visit) -> str:
        """The button to show as chosen when the form comes back: none that grants more than what is ticked."""
        if visit.chosen(self.box):
            return self.only
        said = visit.text(self.field)
        return said if said in (self.everything, self.only) else ""
