"""Output on a real terminal: the same records at three widths, and messages longer than a line."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from tests.support.terminal import close_terminal, open_terminal, run_on_terminal

CODE = """
import os, sys
from crmctl.errors import RejectedError
from crmctl.output.emitter import Emitter
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from crmctl.output.views import record_view
from crmctl.models.resources import Attribute
kinds = {"name": "name", "email": "email", "amount": "currency", "since": "date", "tags": "list", "notes": "text"}
attributes = [Attribute.parse({"id": s, "slug": s, "type": t, "displayOrder": n}) for n, (s, t) in enumerate(kinds.items())]
people = [
    ("Ada Lovelace", 1234567.5, ["vip", "press"]),
    ("\\u5c0f\\u9f99 \\u674e", 12, []),
    ("\\u0645\\u062d\\u0645\\u062f", None, ["\\U0001f642"]),
]
records = [
    {"id": f"00000000-0000-4000-8000-00000000000{n}", "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-07-01T10:05:00Z",
     "data": {"name": name, "email": f"person.number.{n}@acme.example", "amount": amount and {"amount": amount, "currency": "EUR"},
              "since": "2026-01-02", "tags": tags, "notes": "a sentence that goes on for much longer than anybody would like it to"}}
    for n, (name, amount, tags) in enumerate(people)
]
streams = Streams.of_process()
messages = Messages(streams)
Emitter(streams, "table", messages=messages).emit_items(records, record_view(attributes))
REASON = "a reason that is so long that it does not fit into one line of a terminal that is as narrow as most of them"
messages.report_error(RejectedError(REASON))
"""

SHOWN = {
    60: ["id", "name"],
    80: ["id", "name", "email"],
    120: ["id", "name", "email", "amount", "since"],
}


@pytest.mark.parametrize("width", SHOWN)
def test_records_at_three_widths(width: int) -> None:
    seen = run_on_terminal(CODE, columns=width, env={"TZ": "Europe/Berlin", "NO_COLOR": "1"}).out
    lines = seen.splitlines()
    assert re.split(r"  +", lines[0]) == SHOWN[width]
    assert all(cell_len(line) <= width for line in lines)
    assert [line[:36] for line in lines[1:4]] == [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
    said = " ".join(lines[4:])
    assert re.search(r"not shown, too wide for this terminal: .*notes.*updatedAt; choose columns with --fields", said)
    assert "error: a reason that is so long" in said
    assert "as narrow as most of them" in re.sub(r" +", " ", said)
    assert not any(line.rstrip().endswith(("termin", "narro")) for line in lines)
    if width == 120:
        assert lines[1].endswith("Ada Lovelace  person.number.0@acme.example  1,234,567.50 EUR  2026-01-02")
        assert "12.00 EUR" in lines[2]


GRAPHEMES = [
    "\u5c0f\u9f99 \u674e",
    "\u0645\u062d\u0645\u062f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 kin \U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea flag",
    "e\u0301ve\u0301",
    "Ada",
]
MONEY = """
from crmctl.output.emitter import Emitter
from crmctl.output.streams import Streams
from crmctl.output.views import record_view
from crmctl.models.resources import Attribute
kinds = {"name": "text", "amount": "currency", "stage": "select"}
attributes = [Attribute.parse({"id": s, "slug": s, "type": t, "displayOrder": n}) for n, (s, t) in enumerate(kinds.items())]
deals = [
    {"id": f"{n}", "data": {"name": name, "amount": {"amount": 10 ** n + 0.5, "currency": "EUR"}, "stage": "won"}}
    for n, name in enumerate(NAMES)
]
Emitter(Streams.of_process(), "table", fields=["name", "amount", "stage"]).emit_items(deals, record_view(attributes))
"""


@pytest.mark.parametrize("width", [30, 60])
def test_money_beside_names_of_any_script(width: int) -> None:
    """Names of any script stay whole, and amounts end in one column; without room, each record is a block."""
    seen = run_on_terminal(MONEY.replace("NAMES", ascii(GRAPHEMES)), columns=width, env={"NO_COLOR": "1"}).out
    lines = seen.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert all(name in seen for name in GRAPHEMES)
    amounts = [f"{10**n:,}.50 EUR" for n in range(len(GRAPHEMES))]
    ends = {cell_len(line[: line.index(" EUR")]) for line in lines if " EUR" in line}
    assert [next(one for one in reversed(amounts) if one in line) for line in lines if " EUR" in line] == amounts
    assert len(ends) == 1 or width == 30


LIST = """
import sys
from crmctl.output.emitter import Emitter
from crmctl.output.streams import Streams
Emitter(Streams.of_process(), "table", pager=sys.argv[1] if len(sys.argv) > 1 else PAGER).emit_items([{"id": "1", "n": 2}])
"""


def test_a_list_goes_through_the_requested_pager() -> None:
    assert "1   2" in run_on_terminal(LIST.replace("PAGER", "None")).out
    paged = run_on_terminal(LIST.replace("PAGER", repr("sed 's/^/> /'")), env={"NO_COLOR": "1"})
    assert paged.out.splitlines() == ["> id  n", "> 1   2"]
    assert run_on_terminal(LIST.replace("PAGER", repr("true"))).code == 0


LONG_IMPORT = """
from crmctl.output.progress import ProgressDisplay
from crmctl.output.streams import Streams
with ProgressDisplay(Streams.of_process(), time_for=lambda requests: requests * 0.6) as p:
    p.start("importing", 50_000, 100)
    p.advance(12_300)
    input()
"""


@pytest.mark.parametrize("width", [30, 60, 120])
def test_progress_of_a_long_import_at_a_limit(width: int) -> None:
    """At any width, one line shows progress and remaining time."""
    terminal = open_terminal(LONG_IMPORT, columns=width, env={"NO_COLOR": "1"})
    terminal.expect(r"importing [^\r]*24%[^\r\n]*left")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.after)
    assert cell_len(shown) <= width
    assert re.fullmatch(r"importing .*24% .*\d min \d+ s left", shown)
    assert ("12,300 of 50,000" in shown) == (width >= 50)
    terminal.sendline("")
    assert close_terminal(terminal).code == 0
