"""Reports of data checks: for CI, as CSV files of failing records, and their trend."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crmctl.bulk_context import BulkContext
from crmctl.errors import UsageError, reason, storage_error
from crmctl.models import jsontext
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.plan.checks import Outcome
from crmctl.plan.results import github_data, github_property, markdown_cell, xml_attribute

RUNS = 30
SHOWN = 20


def outcome_text(outcome: Outcome) -> str:
    """Return what failed in one sentence: the check's own message, else the first failure."""
    count, first = len(outcome.failures), outcome.failures[0][1] if outcome.failures else ""
    found = f"{count:,} failing" + (f", for example {first}" if first else "")
    return f"{outcome.check.message}: {found}" if outcome.check.message else found


def _junit(outcomes: Sequence[Outcome]) -> str:
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="crmctl check" tests="{len(outcomes)}" failures="{failed}">']
    for outcome in outcomes:
        case = f"  <testcase classname={xml_attribute(outcome.check.object or 'sql')} name={xml_attribute(outcome.check.name)}"
        told = xml_attribute(outcome_text(outcome))
        inner = {"failed": f"<failure message={told}/>", "warned": f"<system-out>{told[1:-1]}</system-out>"}.get(outcome.status, "")
        lines.append(f"{case}>{inner}</testcase>" if inner else f"{case}/>")
    return "\n".join([*lines, "</testsuite>", ""])


def _markdown(outcomes: Sequence[Outcome]) -> str:
    lines = ["| check | object | status | failing | owner | |", "| --- | --- | --- | ---: | --- | --- |"]
    for outcome in outcomes:
        check = outcome.check
        what = "" if outcome.status == "passed" else outcome_text(outcome)
        cells = (check.name, check.object or "", outcome.status, str(len(outcome.failures)), check.owner or "", what)
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
            raise storage_error(error, Path(file)) or UsageError(f"cannot write {file}: {reason(error)}") from error


class CheckHistory:
    """Failing records of the last run, and the number of failures of the last runs, by check."""

    def __init__(self, context: BulkContext, folder: Path) -> None:
        digest = hashlib.sha256(f"{context.profile} {context.origin} {folder.resolve()}".encode()).hexdigest()[:12]
        self._folder = context.state / "checks" / digest
        self._runs = self._folder / "runs.json"

    def add(self, outcomes: Sequence[Outcome]) -> dict[str, list[int]]:
        """Add a run. Returns the numbers of each of its checks, oldest first, at most RUNS."""
        try:
            known = jsontext.loads(self._runs.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        for outcome in outcomes:
            earlier = known.get(outcome.check.name) if isinstance(known.get(outcome.check.name), list) else []
            known[outcome.check.name] = [*earlier, len(outcome.failures)][-RUNS:]
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._runs.with_suffix(".tmp")
        partial.write_text(jsontext.dumps(known), encoding="utf-8")
        partial.replace(self._runs)
        return {outcome.check.name: known[outcome.check.name] for outcome in outcomes}

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
                csv.writer(file).writerows([("id", "check", "problem"), *((record_id, *told) for record_id, told in failing.items())])
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
