"""Count the requests of a one-row import into many people, by e-mail and telephone, with and without a mirror. Exits with 1 if an e-mail
takes more than four without a mirror.

    python benchmarks/one_row.py [PEOPLE]        (default 140000)

Uses the installed program and the log of `crmctl serve`. The people are inserted into the service's database directly. Requests about
objects and attributes are counted separately, because they do not depend on the number of records.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CRMCTL, private_environment
from benchmarks.service_store import batches, new_id
from tests.support.service import ServiceProcess, service_process

from crmctl.service.context import DATABASE_FILE
from crmctl.service.store import objects, records
from crmctl.service.store.engine import open_engine

MOST = 4
ROWS = {
    "e-mail that is there": {"email": "person.77@example.com", "score": "1001"},
    "e-mail in capitals": {"email": "PERSON.78@Example.COM", "score": "1001"},
    "e-mail that is new": {"email": "nobody@example.com", "score": "1001"},
    "telephone that is there": {"phone": "+49 30 00000079", "score": "1001"},
    "telephone written otherwise": {"phone": "+49 (30) 000-00080", "score": "1001"},
    "telephone that is new": {"phone": "+49 30 99999999", "score": "1001"},
}


def fill(database: Path, count: int) -> None:
    engine = open_engine(f"sqlite:///{database}")
    people = engine.read(lambda tx: objects.find_object_by_slug(tx, "people"))
    assert people is not None
    for batch in batches(count):
        items = [{"data": one} for one in batch]
        made = engine.write(lambda tx, items=items: records.bulk_write(tx, people["id"], "create", items, ids=new_id, now=time.time()))  # type: ignore[misc]
        assert made["failed"] == []
    engine.close()


def asked(service: ServiceProcess) -> Counter[str]:
    """Return the service's requests so far: for the schema, to read records, to write them."""
    counts: Counter[str] = Counter()
    for line in service.stderr.splitlines():
        if line.startswith("{") and "path" in (entry := json.loads(line)):
            is_record = "/records" in entry["path"]
            counts["schema" if not is_record else "read" if entry["method"] == "GET" else "written"] += 1
    return counts


def imported(service: ServiceProcess, env: dict[str, str], what: str, mirror: str) -> int:
    """Return the requests about records that one row took."""
    row = ROWS[what]
    file = Path(env["HOME"]) / "one.csv"
    with file.open("w", newline="", encoding="utf-8") as target:
        csv.writer(target).writerows([row.keys(), row.values()])
    before = asked(service)
    command = [CRMCTL, "bulk", "import", "people", str(file), "--key", next(iter(row)), "--mirror", mirror, "--again", "-o", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    counts = asked(service) - before
    result = next(name for name in ("created", "updated", "unchanged") if json.loads(done.stdout)[name])
    print(f"| {what} | {mirror} | {result} | {counts['read'] + counts['written']} | {counts['schema']} |", flush=True)
    return counts["read"] + counts["written"]


def main(count: int) -> int:
    with tempfile.TemporaryDirectory() as name, private_environment() as env:
        data = Path(name) / "data"
        with service_process(data, "--rate-limit", "0") as first:
            key = first.key
        begun = time.monotonic()
        fill(data / DATABASE_FILE, count)
        print(f"{count:,} people, made in {time.monotonic() - begun:.0f} s\n")
        print("| key | mirror | row | requests | about the schema |\n|---|---|---|---|---|")
        with service_process(data, "--rate-limit", "0", "--log", "json", key=key) as service:
            env |= {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": key}
            without = {what: imported(service, env, what, "never") for what in ROWS}
            before = asked(service)
            subprocess.run([CRMCTL, "mirror", "sync", "people", "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
            print(f"| (the mirror is made) | | | {sum((asked(service) - before).values()):,} | |", flush=True)
            for what in ROWS:
                imported(service, env, what, "auto")
    most = max(requests for what, requests in without.items() if what.startswith("e-mail"))
    print(f"an e-mail without a mirror at most {most}, target {MOST}")
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 140_000))
