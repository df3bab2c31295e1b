"""Measure the savings and errors of a key index kept between imports: `python benchmarks/key_index.py [RECORDS]`.

The second import of a file whose records all exist, once with a new reading of the records and once with the index of the first import,
updated from a list by `updated_at`. The service runs in this process and answers at once: requests are exact, minutes follow from the
limit.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.bulkserver import OBJECT_ID, OPERATORS, BulkServer
from tests.support.keydesk import ATTRIBUTES, KeyDesk

from crmctl.match.key_lookups import Lookup
from crmctl.match.keys import KeyIndex, key_rule
from crmctl.plan.row_actions import Resolver

LIMIT = 100


def row(n: int, note: str = "x") -> dict[str, Any]:
    return {"email": f"p{n}@acme.com", "note": note}


def moment(n: int) -> str:
    return f"2026-01-{1 + n // 86400:02}T{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}.000000Z"


def second_import(server: BulkServer, count: int) -> tuple[int, float, dict[str, int]]:
    """Requests, seconds and outcomes of importing all rows again."""
    with tempfile.TemporaryDirectory() as folder:
        desk = KeyDesk(server, Path(folder))
        started = time.perf_counter()
        result = desk.load("Email,Note\n" + "".join(f"p{n}@acme.com,x\n" for n in range(count)), "email")
        outcomes = {str(state): number for state, number in result.summary.counts.items() if number}
        return result.summary.requests, time.perf_counter() - started, outcomes


def kept_index(server: BulkServer, count: int, meanwhile: Callable[[], None]) -> tuple[int, float, dict[str, int]]:
    """Measure the same with the index of an earlier import, after an event."""
    rule = key_rule(["email"], ATTRIBUTES)
    with KeyIndex(rule) as index:
        for n in range(count):
            index.want(n, row(n), lines=(n, n))
        before = Lookup(server.crm(), OBJECT_ID)
        before.fill(index)
        meanwhile()
        started = time.perf_counter()
        now = Lookup(server.crm(), OBJECT_ID, as_of=before.as_of)
        now.refresh(index)
        outcomes = Counter(str(outcome.action) for _, outcome in Resolver(OBJECT_ID, rule, ATTRIBUTES).outcomes(index))
        return now.requests, time.perf_counter() - started, dict(outcomes)


def main(count: int) -> None:
    OPERATORS["greaterThanOrEqual"] = lambda *_: False  # no records are found by their time of creation
    server = BulkServer()
    server.seed([row(n) for n in range(count)], moment)
    records = server.records

    def tell(name: str, found: tuple[int, float, dict[str, int]]) -> None:
        requests, seconds, outcomes = found
        said = ", ".join(f"{number:,} {state}" for state, number in outcomes.items())
        print(f"| {name} | {requests:,} | {requests / LIMIT:.1f} | {seconds:.1f} | {said} |", flush=True)

    def delete() -> None:
        del server.records[: count // 100]

    def restore() -> None:
        """Restore a backup from before the notes: nothing in it is newer than the index."""
        server.records = [one | {"data": one["data"] | {"note": "of the backup"}} for one in copy.deepcopy(records)]

    print("| | requests | minutes at 100 a minute | seconds of its own | what it would do |\n|---|---|---|---|---|")
    tell("read anew", second_import(server, count))
    tell("index kept, nothing happened", kept_index(server, count, lambda: None))
    tell("index kept, 1 % deleted meanwhile", kept_index(server, count, delete))
    tell("the same, read anew", second_import(server, count))
    records = server.records
    tell("index kept, service restored from a backup", kept_index(server, count, restore))
    tell("the same, read anew", second_import(server, count))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
