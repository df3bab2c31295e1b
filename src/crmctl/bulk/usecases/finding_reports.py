"""The findings of a dry run in the form that a build system shows beside the lines of the file: GitHub's annotations, JUnit, Markdown."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self
from xml.sax.saxutils import escape, quoteattr

from crmctl.bulk.findings import Finding, Severity
from crmctl.errors import CrmctlError

IN_MEMORY = 1 << 20
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class FindingReport:
    """Hears every finding of a file, however many there are, and gives the report when all is known."""

    def __init__(self, form: str, file: str) -> None:
        self._file = "stdin" if file == "-" else file
        self._write, self._whole = _FORMS[form]
        self._spool = tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed by __exit__
        self.errors = self.warnings = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._spool.close()

    def add(self, finding: Finding) -> None:
        self.errors += finding.rejects
        self.warnings += not finding.rejects
        self._spool.write(self._write(self._file, finding))

    def add_error(self, error: CrmctlError) -> None:
        """What kept the file from being checked at all."""
        line = error.details.get("line") if isinstance(error.details, dict) else None
        self.add(Finding(error.code, error.message, hint=error.hint, severity=Severity.FATAL, first_line=line))

    def text(self, title: str, sentence: str) -> Iterator[str]:
        """The report in pieces; `title` says what was checked, `sentence` how that ended."""
        self._spool.seek(0)
        head, foot = self._whole(self, title, sentence)
        yield head
        while piece := self._spool.read(IN_MEMORY):
            yield piece
        yield foot

    @property
    def file(self) -> str:
        return self._file


def _said(finding: Finding) -> str:
    column = f"column {finding.column}: " if finding.column is not None else ""
    value = f" (value {finding.value!r})" if finding.value is not None else ""
    return f"{column}{finding.message}{value}" + (f"; {finding.hint}" if finding.hint else "")


def _annotation(file: str, finding: Finding) -> str:
    level = "error" if finding.rejects else "warning"
    facts: dict[str, str | int] = {"file": file, "line": finding.first_line or 1}
    if finding.last_line not in (None, finding.first_line):
        facts["endLine"] = finding.last_line or 1
    facts["title"] = finding.code
    told = ",".join(f"{name}={_property(str(value))}" for name, value in facts.items())
    return f"::{level} {told}::{_data(_said(finding))}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _of_annotations(_report: FindingReport, title: str, sentence: str) -> tuple[str, str]:
    return "", f"::notice title={_property(title)}::{_data(sentence)}\n"


def _case(file: str, finding: Finding) -> str:
    line = finding.first_line or 1
    name = f"line {line}" + (f", column {finding.column}" if finding.column is not None else "")
    said = _xml(_said(finding))
    inner = (
        f"<failure type={_attribute(finding.code)} message={_attribute(said)}>{escape(_xml(f'{file}:{line}: {said}'))}</failure>"
        if finding.rejects
        else f"<system-out>{escape(said)}</system-out>"
    )
    return f'  <testcase classname={_attribute(file)} name={_attribute(name)} file={_attribute(file)} line="{line}">{inner}</testcase>\n'


def _of_cases(report: FindingReport, title: str, sentence: str) -> tuple[str, str]:
    count = report.errors + report.warnings + 1
    head = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n<testsuite name={_attribute(title)} tests="{count}" '
        f'failures="{report.errors}" errors="0" skipped="0">\n'
    )
    last = f"  <testcase classname={_attribute(report.file)} name={_attribute(sentence)} file={_attribute(report.file)}/>\n"
    return head, f"{last}</testsuite>\n</testsuites>\n"


def _xml(text: str) -> str:
    """Without what no XML document can hold."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(text: str) -> str:
    return quoteattr(_xml(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _row(_file: str, finding: Finding) -> str:
    line = str(finding.first_line or "") + (f"-{finding.last_line}" if finding.last_line not in (None, finding.first_line) else "")
    what = finding.message + (f"; {finding.hint}" if finding.hint else "")
    cells = ("error" if finding.rejects else "warning", line, finding.column or "", finding.value or "", what)
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _cell(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|~#&])", r"\\\1", " ".join(text.split()))


def _of_rows(report: FindingReport, title: str, sentence: str) -> tuple[str, str]:
    head = f"### {_cell(title)}\n\n{_cell(sentence)}\n"
    if report.errors + report.warnings:
        head += "\n| | line | column | value | what is wrong |\n| --- | ---: | --- | --- | --- |\n"
    return head, ""


_FORMS: Mapping[str, tuple[Callable[[str, Finding], str], Callable[[FindingReport, str, str], tuple[str, str]]]] = {
    "github": (_annotation, _of_annotations),
    "junit": (_case, _of_cases),
    "markdown": (_row, _of_rows),
}

FORMS = tuple(_FORMS)
