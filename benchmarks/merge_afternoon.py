"""Find, merge and unmerge seeded duplicates with the installed program.

`python benchmarks/merge_afternoon.py --records 100000 [--save FILE]`: on `crmctl serve` (SQLite, no rate limit). Prints seconds, processor
time, peak memory and requests of each command, and the time of these requests at the usual 100 a minute. One person in eleven exists twice,
one in ten has a deal, one in forty has a call. The states before and after are compared without ids.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.dedupe_figures import spoil
from benchmarks.dedupe_memory import people
from benchmarks.measuring import CRMCTL, embedded_service, private_environment
from tests.support.merges import connect

RULES = ["name~0.9,phone", "name~0.9,address~0.8"]
A_MINUTE = 100
"""Requests per minute at the default rate limit."""


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield people with unique e-mail addresses; a duplicate's address differs in a letter. `notes` identifies the person."""
    chance, seen = random.Random(100), set[str]()
    for number, person in enumerate(people(count)):
        email = str(person["email"] or "")
        while email in seen:
            email = spoil(email.partition("@")[0], chance) + f".{number}@spoiled.com"
        seen.add(email)
        yield {**person, "email": email, "notes": f"person {number}", "job_title": chance.choice(["", "Engineer", "Buyer"])}


class Afternoon:
    """One service and one state directory; `lines` holds the cost of each command."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self.env, self.folder = dict(env), folder
        self.crm = connect(env["CRMCTL_BASE_URL"], env["CRMCTL_API_KEY"])
        self.lines: list[dict[str, Any]] = []
        self.objects = {one.slug: one.id for one in self.crm.list_objects()}

    def run(self, what: str, *arguments: str) -> dict[str, Any]:
        begun, out = time.perf_counter(), self.folder / "out.json"
        with out.open("wb") as stdout, (self.folder / "err.txt").open("wb") as stderr:
            process = os.posix_spawn(
                CRMCTL, [CRMCTL, *arguments, "-o", "json", "--yes"], self.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, stdout.fileno(), 1), (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2)],
            )  # fmt: skip
            _, status, used = os.wait4(process, 0)
        told = (self.folder / "err.txt").read_text()
        if status:
            raise SystemExit(f"{what}: {os.waitstatus_to_exitcode(status)}\n{out.read_text()[:2000]}\n{told[-2000:]}")
        document: dict[str, Any] = json.loads(out.read_bytes())
        requests = document.get("requests", 0)
        self.lines.append(
            {
                "step": what, "requests": requests, "at 100 a minute": f"{requests / A_MINUTE:,.0f} min",
                "seconds": round(time.perf_counter() - begun), "processor": round(used.ru_utime + used.ru_stime),
                "MB": round(used.ru_maxrss / 1024),
            }
        )  # fmt: skip
        print(f"{self.lines[-1]}\n{told}", file=sys.stderr, flush=True)
        return document

    def write(self, object_slug: str, made: Iterator[dict[str, Any]]) -> None:
        path = self.folder / f"{object_slug}.csv"
        with path.open("w", newline="") as file:
            first = next(made)
            writer = csv.DictWriter(file, list(first))
            writer.writeheader()
            writer.writerow(first)
            writer.writerows(made)
        self.run(f"import {object_slug}", "bulk", "import", object_slug, str(path))

    def records(self, object_slug: str) -> Iterator[Any]:
        offset = 0
        while page := self.crm.list_records(self.objects[object_slug], sort="created_at", order="asc", limit=100, offset=offset).items:
            yield from page
            offset += len(page)

    def fill(self, count: int) -> None:
        self.write("people", rows(count))
        ids = [record.id for record in self.records("people")]
        chance = random.Random(7)
        deals = ({"name": f"deal {number}", "contact": chance.choice(ids)} for number in range(count // 10))
        self.write("deals", deals)

        def call(number: int) -> None:
            link = {"objectId": self.objects["people"], "recordId": ids[chance.randrange(len(ids))]}
            self.crm.create_activity({"title": f"call {number}", "summary": "", "linkedRecords": [link], "participants": []})

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(call, range(count // 40)))

    def snapshot(self) -> Counter[str]:
        """Return a word for each record, deal and activity, with names in place of ids."""
        names, found = {}, Counter[str]()
        for record in self.records("people"):
            names[record.id] = record.data["notes"]
            found[_word(record.data)] += 1
        found.update(_word({**record.data, "contact": names.get(record.data.get("contact"))}) for record in self.records("deals"))
        offset = 0
        while page := self.crm.list_activities(limit=100, offset=offset).items:
            for one in page:
                found[_word([one.title, sorted(names.get(link["recordId"], "?") for link in one.wire["linkedRecords"])])] += 1
            offset += len(page)
        return found


def _word(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=12).hexdigest()


def afternoon(count: int) -> tuple[list[dict[str, Any]], str]:
    with tempfile.TemporaryDirectory() as folder, private_environment() as env, embedded_service(env) as ready:
        day = Afternoon(ready, Path(folder))
        day.fill(count)
        before = day.snapshot()
        plan = str(Path(folder) / "duplicates.jsonl")
        rules = [part for rule in RULES for part in ("--match", rule)]
        found = day.run("bulk dedupe", "bulk", "dedupe", "people", *rules, "--keep", "most-complete", "--plan", plan)
        done = day.run("bulk apply", "bulk", "apply", plan)
        left = sum(1 for _ in day.records("people"))
        assert done["merged"] == found["groups"], "every group is merged"
        assert left == count - found["duplicates"], "and every duplicate gone"
        day.run("bulk undo", "bulk", "undo", done["job"])
        after = day.snapshot()
        differs = sum((before - after).values()) + sum((after - before).values())
        told = (
            f"{count:,} people, {found['duplicates']:,} duplicates in {found['groups']:,} groups merged, {done['references']:,} references "
            f"and {done['activities']:,} activities with them; after the undo {differs:,} of {before.total():,} are not as before"
        )
        return day.lines, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--save", type=Path, help="write the table here")
    given = parser.parse_args()
    lines, told = afternoon(given.records)
    table = [f"| {' | '.join(lines[0])} |", "|---" * len(lines[0]) + "|"]
    table += ["| " + " | ".join(f"{value:,}" if isinstance(value, int) else value for value in line.values()) + " |" for line in lines]
    text = "\n".join([told, "", *table])
    print(text)
    if given.save:
        given.save.write_text(f"{text}\n")
    sys.exit("0 of" not in told)


if __name__ == "__main__":
    main()
