"""Reports for CI: findings of a dry run and outcomes of data checks, for GitHub, JUnit and Markdown."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import quoteattr

from crmctl.errors import CrmctlError
from crmctl.frozen import frozen
from crmctl.models.findings import Finding, Severity

IN_MEMORY = 1 << 20
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@frozen
class Case:
    """A finding or a check in a report. `level` is error, warning, or empty for a passed check; `cells` are the row in Markdown."""

    level: str
    name: str
    file: str
    lines: tuple[int, int]
    code: str
    text: str
    cells: Mapping[str, object]


def finding_case(file: str, finding: Finding) -> Case:
    level, first, last = "error" if finding.rejects else "warning", finding.first_line or 1, finding.last_line
    hint = f"; {finding.hint}" if finding.hint else ""
    text = f"{replace(finding, first_line=None).to_text()}{hint}"
    name = f"line {first}" + (f", column {finding.column}" if finding.column is not None else "")
    lines = str(finding.first_line or "") + (f"-{last}" if last not in (None, finding.first_line) else "")
    cells = {"": level, "line": lines, "column": finding.column, "value": finding.value, "what is wrong": f"{finding.message}{hint}"}
    return Case(level, name, file, (first, last or first), finding.code, text, cells)


def error_finding(error: CrmctlError) -> Finding:
    """Return the finding of an error that ends a dry run."""
    line = error.details.get("line") if isinstance(error.details, dict) else None
    return Finding(error.code, error.message, hint=error.hint, severity=Severity.FATAL, first_line=line)


class CiReport(ExitStack):
    """Collect cases on disk, and produce the report at the end."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.columns: Sequence[str] = ()
        self.counts: Counter[str] = Counter()
        self._case_text, self._enclose = FORMS[form]
        spool = tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - the stack closes it
        self._spool = self.enter_context(spool)

    def add(self, case: Case) -> None:
        self.counts[case.level] += 1
        self.columns = self.columns or [*case.cells]
        self._spool.write(self._case_text(case))

    def write(self, write: Callable[[str], object], title: str, sentence: str = "") -> None:
        """Write the report in pieces. `title` names what was checked, `sentence` states the outcome."""
        self._spool.seek(0)
        head, foot = self._enclose(self, title, sentence)
        for piece in chain([head], iter(lambda: self._spool.read(IN_MEMORY), ""), [foot]):
            write(piece)


def _annotation(case: Case) -> str:
    if not case.level:
        return ""
    first, last = case.lines
    facts = {"file": case.file, "line": first, **({"endLine": last} if last != first else {}), "title": case.code}
    properties = ",".join(f"{name}={_github(str(value), PROPERTY)}" for name, value in facts.items())
    return f"::{case.level} {properties}::{_github(case.text)}\n"


PROPERTY = "%\r\n:,"


def _github(text: str, special: str = "%\r\n") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in special else letter for letter in text)


def _test_case(case: Case) -> str:
    element = Element("testcase", classname=case.file, name=case.name, file=case.file, line=str(case.lines[0]))
    if case.level == "error":
        SubElement(element, "failure", type=case.code, message=case.text).text = f"{case.file}:{case.lines[0]}: {case.text}"
    elif case.level:
        SubElement(element, "system-out").text = case.text
    return _xml(tostring(element, encoding="unicode"))


def _suite(report: CiReport, title: str, sentence: str) -> tuple[str, str]:
    counts = f'tests="{report.counts.total() + bool(sentence)}" failures="{report.counts["error"]}"'
    suite = f'<testsuites {counts}>\n<testsuite name={quoteattr(title)} {counts} errors="0" skipped="0">'
    last = _xml(f"<testcase classname={quoteattr(title)} name={quoteattr(sentence)}/>") if sentence else ""
    return _xml(f'<?xml version="1.0" encoding="UTF-8"?>\n{suite}'), f"{last}</testsuite>\n</testsuites>\n"


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text) + "\n"


def _cell(value: object) -> str:
    """Return a value as text without markup in Markdown and HTML; an empty text for None."""
    return re.sub(r"([\\`*_{}\[\]<>|~#&])", r"\\\1", "" if value is None else " ".join(str(value).split()))


def _table(report: CiReport, title: str, sentence: str) -> tuple[str, str]:
    head = f"### {_cell(title)}\n" + (f"\n{_cell(sentence)}\n" if sentence else "")
    if report.columns:
        rules = ("---:" if column in ("line", "failing") else "---" for column in report.columns)
        head += f"\n| {' | '.join(report.columns)} |\n| {' | '.join(rules)} |\n"
    return head, ""


FORMS: Mapping[str, tuple[Callable[[Case], str], Callable[[CiReport, str, str], tuple[str, str]]]] = {
    "github": (_annotation, lambda _, title, text: ("", f"::notice title={_github(title, PROPERTY)}::{_github(text)}\n" if text else "")),
    "junit": (_test_case, _suite),
    "markdown": (lambda case: f"| {' | '.join(map(_cell, case.cells.values()))} |\n", _table),
}
