"""A context for bulk use cases that tests control completely; it shows no notes or progress, and `findings` keeps the reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.bulkjobs import Silent


@dataclass
class QuietListener:
    progress: Any = field(default_factory=Silent)
    notes: list[str] = field(default_factory=list)
    findings: list[Any] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def report(self, finding: Any) -> None:
        self.findings.append(finding)

    def confirm(self, question: str) -> None:
        self.questions.append(question)


@dataclass
class QuietContext:
    """The parts of a context that bulk use cases need."""

    service: Any
    clock: Any
    listener: QuietListener = field(default_factory=QuietListener)

    @property
    def crm(self) -> Any:
        return self.service
