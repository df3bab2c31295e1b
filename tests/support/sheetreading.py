"""Read a spoiled sheet as an import does and compare the result with the truth; every fault is described in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from crmctl.errors import RejectedError, UsageError
from crmctl.files.cell_values import ValueOptions, finding_of, is_blank, value_reader
from crmctl.files.mapping import MappingOptions, build_mapping
from crmctl.files.rows import SourceOptions
from crmctl.files.sources import open_source
from crmctl.files.validation import Payload, payloads
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute
from crmctl.values.composites import learn_form
from tests.support.sheets import ATTRIBUTES, Sheet

DOUBTS = {"quoted_text", "stray_mark"}
"""Warnings that report a wrong value."""


@dataclass
class Outcome:
    """The result of a file: exact rows, rows reported by findings, the code of a refusal, and faults."""

    exact: int = 0
    named: int = 0
    refusal: str | None = None
    faults: list[str] = field(default_factory=list)


def read_sheet(sheet: Sheet, path: Path) -> Outcome:
    """Write the sheet to `path`, import it up to the point of sending, and judge."""
    data, lines = sheet.write()
    path.write_bytes(data)
    outcome = Outcome()
    seen: list[Payload] = []
    notes: list[str] = []
    try:
        source = open_source(path, SourceOptions(**sheet.source), name="sheet.csv")
        notes = source.dialect.notes
        mapping = build_mapping(source.header, ATTRIBUTES, MappingOptions(**sheet.mapping))
        for payload in payloads(source, mapping, ATTRIBUTES, ValueOptions(**sheet.values)):
            seen.append(payload)
    except (UsageError, RejectedError) as error:
        outcome.refusal = error.code
        if error.code not in sheet.refusals:
            outcome.faults.append(f"the whole file was refused for no reason: {error.code}: {error}")
        if not str(error):
            outcome.faults.append("a refusal without a message")
        return outcome
    _judge(sheet, lines, seen, any("cut off" in note for note in notes), outcome)
    return outcome


def _judge(sheet: Sheet, lines: dict[str, tuple[int, int]], seen: list[Payload], may_be_cut: bool, outcome: Outcome) -> None:
    truth = {row.data["ref"]: row for row in sheet.rows}
    rejected = [finding for payload in seen if payload.rejected for finding in payload.findings]
    came = set()
    for payload in seen:
        if payload.rejected:
            if payload.first_line < 1 or not all(finding.message for finding in payload.findings):
                outcome.faults.append(f"row {payload.ordinal} was rejected without a place or a reason")
            continue
        ref = payload.data.get("ref")
        row = truth.get(ref)
        doubted = any(finding.code in DOUBTS for finding in payload.findings)
        is_last = payload is seen[-1]
        if row is not None and ref not in came and equals_truth(payload.data, row.data):
            came.add(ref)
            outcome.exact += 1
            if row.lost and not doubted:
                outcome.faults.append(f"row {ref} was imported although it is unreadable")
        elif doubted or ("cut off" in sheet.refusals and is_last and may_be_cut):
            came.add(ref)
            outcome.named += 1
        else:
            outcome.faults.append(f"CORRUPTED: {payload.data} instead of {row.data if row else 'nothing'}")
    last_line = max((payload.last_line for payload in seen), default=1)
    for ref, row in truth.items():
        if ref in came:
            continue
        if any(_covers(finding, lines[ref]) for finding in rejected):
            outcome.named += 1
            if not row.lost and not sheet.refusals:
                outcome.faults.append(f"row {ref} was rejected for no reason: {rejected}")
        elif not ("cut off" in sheet.refusals and lines[ref][1] >= last_line):
            outcome.faults.append(f"LOST: row {ref} of lines {lines[ref]} is neither imported nor reported")


def _covers(finding: Finding, lines: tuple[int, int]) -> bool:
    first, last = finding.first_line or 0, finding.last_line or finding.first_line or 0
    return first <= lines[1] and last >= lines[0]


def equals_truth(data: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether data equals the truth, to the character; numbers are compared by value."""
    return data.keys() == truth.keys() and all(
        _number(data[slug]) == _number(truth[slug]) if slug == "score" else data[slug] == truth[slug] for slug in truth
    )


def _number(value: Any) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def convert(value: Any, attribute: Attribute, options: ValueOptions, *, header: str | None = None) -> Any:
    """Return the wire value of one cell (text) or JSON value.

    Return None for a blank value, a Finding for an invalid one.
    """
    column = header if header is not None else attribute.slug
    if is_blank(value, attribute, options):
        return None
    try:
        return value_reader(attribute, options.rules_for(column, attribute.slug), learn_form(attribute, options.samples))(value)
    except RejectedError as error:
        return finding_of(error).on(column, value)
