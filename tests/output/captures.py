"""Captures of 20 tables on terminals of 80 and 120 columns, from equal data each time.

    python -m tests.output.captures

writes tests/output/captures/, which test_captures.py compares with crmctl's output. Read each changed line before you keep it: words are
whole, numbers and units line up, the columns people look for are there, and no column is empty.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pexpect

from crmctl.models.jsontext import loads
from tests.support.cli import CRMCTL, start_crmctl
from tests.support.isolation import FOLDERS, KNOWN
from tests.support.pages import File, open_shell, read_steps, type_line
from tests.support.tasks import read_tasks

FOLDER = Path(__file__).with_name("captures")
WIDTHS = (80, 120)
TABLES = (
    "records list people",
    "records list companies",
    "records list deals",
    "records list deals --sort company.name --order asc --fields name,company.name,amount,close_date",
    "records get people email=ada@acme.com",
    "records count deals --by stage --sum amount --max amount",
    "records count deals --by close_date:month --sum amount --sort close_date:month",
    "records history people email=ada@acme.com",
    "records merge people email=ada@acme.com email=a.lovelace@gmail.com --dry-run",
    "bulk inspect leads.csv --object people",
    "bulk dedupe people --match phone --review",
    "bulk jobs",
    "objects list",
    "attributes list people",
    "activities list",
    "members list",
    "reports results 'Deals by stage'",
    "files list",
    "mirror status 2>/dev/null",
    "schema diff schema.yaml",
)
SETTING_UP = (
    "bulk import companies companies.csv",
    "bulk import people people.csv --ref company=companies.domain",
    "bulk import deals deals.csv --ref company=companies.domain --ref contact=people.email",
    "records update people email=ada@acme.com --set status=inactive --set address.city=Turin",
    "bulk import people leads.csv --map 'Full Name=name' --map 'Next call=' --ref company=companies.domain --on-error continue; true",
    "bulk update people --filter address.city=Rome --set tags+=rome --yes",
    "bulk undo last --yes",
    "activities create --title 'Called Grace' --date 2026-05-31T15:30:00Z --link people:email=grace@acme.com",
    "files upload companies.csv --bucket documents",
    "reports init | sed 's/field: count,/field: sum_amount,/' > reports.yaml",
    'service load reports.yaml --data "$DATA"',
    "reports run 'Deals by stage'",
    "schema pull -o yaml | sed -e 's/name: Score/name: Rank/' -e 's/- customer/- client/' > schema.yaml",
    "mirror sync",
)
VARYING = (
    (re.compile(r"\b20\d{6}-[a-z0-9]{5}\b"), "20260601-abcde"),
    (re.compile(r"127\.0\.0\.1:\d{5}\b"), "127.0.0.1:54321"),
    (re.compile(r"(?m)^(20260601-abcde  )\d{4}-\d\d-\d\d \d\d:\d\d"), r"\g<1>2026-06-01 00:00"),
    (re.compile(r"(companies\.csv  documents .*  )20\d\d-\d\d-\d\d \d\d:\d\d"), r"\g<1>2026-06-01 00:00"),
)
"""Values that depend on the machine and its clock, with texts of the same width."""


def capture(folder: Path, crmctl: Path = CRMCTL.parent) -> dict[int, str]:
    """Fill a service with the sample in `folder`; return all tables by width."""
    start, tasks = read_tasks()
    for step in read_steps(start + "".join(task.text for task in tasks)):
        if isinstance(step, File) and step.name.endswith(".csv"):
            (folder / step.name).write_text(step.text, encoding="utf-8")
    with start_crmctl(
        "serve", "--ephemeral", "--seed", "7", "--clock", "2026-06-01T00:00:00Z", "--rate-limit", "0", "--port", "0"
    ) as service:
        assert service.stdout is not None
        ready = loads(service.stdout.readline())
        known = {"CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"], "DATA": ready["data"], "TERM": "dumb"}
        try:
            with open_shell(folder, known, crmctl) as shell:
                for command in SETTING_UP:
                    _type(shell, command)
                return {width: _tables(shell, width) for width in WIDTHS}
        finally:
            service.kill()


def _tables(shell: pexpect.spawn, width: int) -> str:
    shell.setwinsize(50, width)
    return "\n".join(f"$ crmctl {command}\n{_type(shell, command)}" for command in TABLES)


def _type(shell: pexpect.spawn, command: str) -> str:
    code, printed = type_line(shell, f"crmctl {command}")
    assert code == 0, f"{command}\nended with {code}:\n{printed}"
    for varying, fixed in VARYING:
        printed = varying.sub(fixed, printed)
    return printed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(KNOWN, **{name: str(Path(folder, place)) for name, place in FOLDERS.items()})
        for width, text in capture(Path(folder)).items():
            (FOLDER / f"{width}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"written: {FOLDER}\n")


if __name__ == "__main__":
    main()
