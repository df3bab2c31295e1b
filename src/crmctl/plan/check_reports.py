"""Reports of dry runs and data checks: for CI, as CSV files of failing records, and their trend."""

from __future__ import annotations

import csv
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from crmctl.bulk_context import BulkContext
from crmctl.config.settings import write_private
from crmctl.errors import CrmctlError, UsageError, reason, storage_error
from crmctl.models import jsontext
from crmctl.models.findings import Finding, Severity
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.plan.checks import Outcome

IN_MEMORY = 1 << 20
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class FindingReport(ExitStack):
    """Collect every finding of a file on disk and produce the report at the end."""

    def __init__(self, form: str, file: str) -> None:
        super().__init__()
        self.file = "stdin" if file == "-" else file
        self._write, self._whole = _FORMS[form]
        spool = tempfile.SpooledTemporaryFile(IN_MEMORY, "w+", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - the stack closes it
        self._spool = self.enter_context(spool)
        self.errors = self.warnings = 0

    def add(self, finding: Finding) -> None:
        self.errors += finding.rejects
        self.warnings += not finding.rejects
        self._spool.write(self._write(self.file, finding))

    def add_error(self, error: CrmctlError) -> None:
        line = error.details.get("line") if isinstance(error.details, dict) else None
        self.add(Finding(error.code, error.message, hint=error.hint, severity=Severity.FATAL, first_line=line))

    def text(self, title: str, sentence: str) -> Iterator[str]:
        """Yield the report in pieces. `title` names what was checked, `sentence` states the outcome."""
        self._spool.seek(0)
        head, foot = self._whole(self, title, sentence)
        yield head
        while piece := self._spool.read(IN_MEMORY):
            yield piece
        yield foot


def _report_text(finding: Finding) -> str:
    column = f"column {finding.column}: " if finding.column is not None else ""
    value = f" (value {finding.value!r})" if finding.value is not None else ""
    return f"{column}{finding.message}{value}" + (f"; {finding.hint}" if finding.hint else "")


def _annotation(file: str, finding: Finding) -> str:
    level = "error" if finding.rejects else "warning"
    facts: dict[str, str | int] = {"file": file, "line": finding.first_line or 1}
    if finding.last_line not in (None, finding.first_line):
        facts["endLine"] = finding.last_line or 1
    facts["title"] = finding.code
    properties = ",".join(f"{name}={github_property(str(value))}" for name, value in facts.items())
    return f"::{level} {properties}::{github_data(_report_text(finding))}\n"


def github_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def github_property(text: str) -> str:
    return github_data(text).replace(":", "%3A").replace(",", "%2C")


def _case(file: str, finding: Finding) -> str:
    line = finding.first_line or 1
    name = f"line {line}" + (f", column {finding.column}" if finding.column is not None else "")
    text = _xml(_report_text(finding))
    inner = (
        f"<failure type={xml_attribute(finding.code)} message={xml_attribute(text)}>{escape(_xml(f'{file}:{line}: {text}'))}</failure>"
        if finding.rejects
        else f"<system-out>{escape(text)}</system-out>"
    )
    place = f'classname={xml_attribute(file)} name={xml_attribute(name)} file={xml_attribute(file)} line="{line}"'
    return f"  <testcase {place}>{inner}</testcase>\n"


def _of_cases(report: FindingReport, title: str, sentence: str) -> tuple[str, str]:
    count = report.errors + report.warnings + 1
    head = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n<testsuite name={xml_attribute(title)} tests="{count}" '
        f'failures="{report.errors}" errors="0" skipped="0">\n'
    )
    last = f"  <testcase classname={xml_attribute(report.file)} name={xml_attribute(sentence)} file={xml_attribute(report.file)}/>\n"
    return head, f"{last}</testsuite>\n</testsuites>\n"


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def xml_attribute(text: str) -> str:
    return quoteattr(_xml(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _row(_file: str, finding: Finding) -> str:
    line = str(finding.first_line or "") + (f"-{finding.last_line}" if finding.last_line not in (None, finding.first_line) else "")
    description = finding.message + (f"; {finding.hint}" if finding.hint else "")
    cells = ("error" if finding.rejects else "warning", line, finding.column or "", finding.value or "", description)
    return f"| {' | '.join(map(markdown_cell, cells))} |\n"


def markdown_cell(text: str) -> str:
    """Escape text for Markdown and HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|~#&])", r"\\\1", " ".join(text.split()))


def _of_rows(report: FindingReport, title: str, sentence: str) -> tuple[str, str]:
    head = f"### {markdown_cell(title)}\n\n{markdown_cell(sentence)}\n"
    if report.errors + report.warnings:
        head += "\n| | line | column | value | what is wrong |\n| --- | ---: | --- | --- | --- |\n"
    return head, ""


_FORMS: Mapping[str, tuple[Callable[[str, Finding], str], Callable[[FindingReport, str, str], tuple[str, str]]]] = {
    "github": (_annotation, lambda _, title, sentence: ("", f"::notice title={github_property(title)}::{github_data(sentence)}\n")),
    "junit": (_case, _of_cases),
    "markdown": (_row, _of_rows),
}

FORMS = tuple(_FORMS)


RUNS = 30
SHOWN = 20


def outcome_text(outcome: Outcome) -> str:
    """Return what failed in one sentence: the check's own message, else the first failure."""
    count, first = len(outcome.failures), outcome.failures[0][1] if outcome.failures else ""
    failing = f"{count:,} failing" + (f", for example {first}" if first else "")
    return f"{outcome.check.message}: {failing}" if outcome.check.message else failing


def _junit(outcomes: Sequence[Outcome]) -> str:
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="crmctl check" tests="{len(outcomes)}" failures="{failed}">']
    for outcome in outcomes:
        case = f"  <testcase classname={xml_attribute(outcome.check.object or 'sql')} name={xml_attribute(outcome.check.name)}"
        text = xml_attribute(outcome_text(outcome))
        inner = {"failed": f"<failure message={text}/>", "warned": f"<system-out>{text[1:-1]}</system-out>"}.get(outcome.status, "")
        lines.append(f"{case}>{inner}</testcase>" if inner else f"{case}/>")
    return "\n".join([*lines, "</testsuite>", ""])


def _markdown(outcomes: Sequence[Outcome]) -> str:
    lines = ["| check | object | status | failing | owner | |", "| --- | --- | --- | ---: | --- | --- |"]
    for outcome in outcomes:
        check = outcome.check
        text = "" if outcome.status == "passed" else outcome_text(outcome)
        cells = (check.name, check.object or "", outcome.status, str(len(outcome.failures)), check.owner or "", text)
        lines.append(f"| {' | '.join(map(markdown_cell, cells))} |")
    return "\n".join(["### Data checks", "", *lines, ""])


def _github(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        file, _, line = outcome.check.place.rpartition(", line ")
        if outcome.status != "passed":
            level = "error" if outcome.status == "failed" else "warning"
            place = f"file={github_property(file)},line={line},title={github_property(outcome.check.name)}"
            lines.append(f"::{level} {place}::{github_data(outcome_text(outcome))}")
    return "".join(f"{line}\n" for line in lines)


REPORTS: Mapping[str, Callable[[Sequence[Outcome]], str]] = {"junit": _junit, "markdown": _markdown, "github": _github}


def read_targets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return kind and file of each `KIND=FILE`. Raises UsageError."""
    targets = []
    for text in texts:
        kind, sign, file = text.partition("=")
        if kind not in REPORTS or not sign or not file:
            hint = suggestion(kind, REPORTS, f"kinds: {', '.join(REPORTS)}; for example --report junit=checks.xml")
            raise UsageError(f"--report must be KIND=FILE, not {text!r}", hint=hint)
        targets.append((kind, file))
    return targets


def write_reports(targets: Sequence[tuple[str, str]], outcomes: Sequence[Outcome], write_out: Callable[[str], None]) -> None:
    """Write each report; the file `-` is stdout. Raises UsageError, and StorageError on a full disk."""
    for kind, file in targets:
        text = REPORTS[kind](outcomes)
        try:
            write_out(text) if file == "-" else Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise storage_error(error, Path(file), UsageError(f"cannot write {file}: {reason(error)}")) from error


class CheckHistory:
    """Failing records of the last run, and the number of failures of the last runs, by check."""

    def __init__(self, context: BulkContext, folder: Path) -> None:
        digest = hashlib.sha256(f"{context.profile} {context.origin} {folder.resolve()}".encode()).hexdigest()[:12]
        self._folder = context.state / "checks" / digest
        self._runs = self._folder / "runs.json"

    def add(self, outcomes: Sequence[Outcome]) -> dict[str, list[int]]:
        """Add a run. Returns the numbers of each of its checks, oldest first, at most RUNS."""
        try:
            runs = {name: [int(number) for number in numbers] for name, numbers in jsontext.loads(self._runs.read_text("utf-8")).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            runs = {}  # no run yet, or a damaged file
        for outcome in outcomes:
            runs[outcome.check.name] = [*runs.get(outcome.check.name, []), len(outcome.failures)][-RUNS:]
        write_private(self._runs, jsontext.dumps(runs))
        return {outcome.check.name: runs[outcome.check.name] for outcome in outcomes}

    def write_failures(self, outcomes: Sequence[Outcome]) -> dict[str, Path]:
        """Write the failing records of each object to a CSV that `bulk update --ids` accepts. Returns the files by object."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.csv"):
            old.unlink()
        rows: dict[str, dict[str, tuple[str, str]]] = {}
        for outcome in outcomes:
            for record_id, why in outcome.failures if outcome.status != "passed" else ():
                if record_id is not None and outcome.check.object is not None:
                    rows.setdefault(outcome.check.object, {}).setdefault(record_id, (outcome.check.name, why))
        files = {}
        for slug, failing in rows.items():
            files[slug] = self._folder / f"{slug}.csv"
            with files[slug].open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("id", "check", "problem"), *((record_id, *values) for record_id, values in failing.items())])
        return files


_BARS = "▁▂▃▄▅▆▇█"


def trend_text(numbers: Sequence[int]) -> str:
    """Return `▁▁▃█` for the failures of the last runs."""
    most = max(numbers, default=0)
    return "".join(_BARS[0] if not number else _BARS[max(1, round(number * 7 / most))] for number in numbers)


def outcome_document(outcome: Outcome, trend: Sequence[int], file: Path | None) -> Json:
    check = outcome.check
    return {
        "name": check.name,
        "object": check.object,
        "kind": check.kind,
        "severity": check.severity,
        "status": outcome.status,
        "failing": len(outcome.failures),
        "max": check.max,
        "owner": check.owner,
        "message": None if outcome.status == "passed" else outcome_text(outcome),
        "ids": [record_id for record_id, _ in outcome.failures[:SHOWN] if record_id is not None],
        "file": None if file is None or outcome.status == "passed" else str(file),
        "trend": list(trend),
    }
