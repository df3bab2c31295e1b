"""Measure `crmctl org`: random organizations, processor time and memory of a large pull, kills, and leaks of a mask.

    python benchmarks/organizations.py random [200] [0] [sqlite|postgresql|plain]
                                                         pull, apply to an empty service, pull; identical apart from ids; from seed 0 on
    python benchmarks/organizations.py pull [100000]     the pull after a sync: 10 s of processor time, 150 MB; apply against bulk import
    python benchmarks/organizations.py kills [30]        kill -9 in each phase of pull and apply
    python benchmarks/organizations.py leaks [20000]     scan a masked copy of that many people for every value of the source

Exits with 1 if a target is missed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CRMCTL
from tests.org.test_apply import by_new_ids
from tests.support.organizations import furnish
from tests.support.plainservice import PlainService
from tests.support.postgres import Server, private_cluster
from tests.support.service import RunningService, running_service

from crmctl.errors import ExitCode

PULL_SECONDS, PULL_BYTES = 10.0, 150_000_000
MOST_REPEATS = 5


def run(service: RunningService | PlainService, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
    done = subprocess.run([str(CRMCTL), *words], env=env, capture_output=True, text=True, check=False)
    assert code is None or done.returncode == code, (words, done.returncode, done.stderr[-2000:])
    return done


def fresh(name: str) -> Path:
    folder = Path(name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    return folder


@contextmanager
def service_of(engine: str, name: str, server: Server | None) -> Iterator[RunningService | PlainService]:
    """Start an empty service: crmctl's own, or one that offers the specification and nothing more."""
    if engine == "plain":
        with PlainService() as plain:
            yield plain
    else:
        with running_service(fresh(name), database_url=server.create_database() if server else None) as running:
            yield running


def random_organizations(count: int, first: int = 0, engine: str = "sqlite") -> bool:
    differing = []
    cluster = private_cluster() if engine == "postgresql" else nullcontext()
    with cluster as port:
        server = Server(port) if port else None
        for seed in range(first, first + count):
            if not arrives_whole(seed, engine, server):
                differing.append(seed)
    print(f"{count} random organizations on {engine} from seed {first}, {len(differing)} differ: {differing[:10]}")
    return not differing


def arrives_whole(seed: int, engine: str, server: Server | None) -> bool:
    for name in ("first", "second", "STATE"):
        shutil.rmtree(name, ignore_errors=True)
    Path("map.json").unlink(missing_ok=True)
    with service_of(engine, "one", server) as one, service_of(engine, "two", server) as two:
        furnish(one, 1000 + seed)
        run(one, "org", "pull", "first")
        applied = run(two, "org", "apply", "first", "--map", "map.json", code=None)
        run(two, "org", "pull", "second")
        same = by_new_ids(Path("first"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})
    if applied.returncode or not same:
        print(f"seed {seed}: same: {same}; apply ended with {applied.returncode}: {applied.stderr[-500:]}", flush=True)
    return not applied.returncode and same


def person(n: int) -> dict[str, str]:
    email, name = f"p{n}@corp{n % 997}.net", f"Given{n} Family{n * 7}"
    return {"email": email, "name": name, "phone": f"+4420{n:08}", "job_title": f"Job {n}"}


def add_people(service: RunningService, count: int) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records/bulk"
    for start in range(0, count, 100):
        rows = [{"data": person(number)} for number in range(start, min(start + 100, count))]
        assert service.client.post(path, json={"records": rows}).json()["created"] == len(rows)


def large_pull(count: int) -> bool:
    with running_service(fresh("one")) as one, running_service(fresh("two")) as two, running_service(fresh("three")) as three:
        add_people(one, count)
        run(one, "mirror", "sync", "people", "companies", "deals")
        seconds = processor_seconds(one, "org", "pull", "crm", "--with", "")
        largest = peak(one, "org", "pull", "again", "--with", "")
        subset = processor_seconds(one, "org", "pull", "part", "--with", "", "--sample", f"people={count // 2}")
        applied = processor_seconds(two, "org", "apply", "crm")
        lines = Path("crm/records/people.jsonl").read_text().splitlines()
        Path("people.jsonl").write_text("".join(json.dumps(json.loads(line)["data"]) + "\n" for line in lines))
        imported = processor_seconds(three, "bulk", "import", "people", "people.jsonl", "--capture-ids")
    print(f"{count:,} records: pull {seconds:.1f} s of processor time, {largest / 1e6:.0f} MB; a sample of half of them {subset:.1f} s")
    print(f"apply {applied:.1f} s of processor time, bulk import of the same rows {imported:.1f} s")
    return seconds <= PULL_SECONDS and largest <= PULL_BYTES


def processor_seconds(service: RunningService, *words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(service, *words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak(service: RunningService, *words: str) -> int:
    """Return the peak memory of a command, measured by itself."""
    # VmHWM, because ru_maxrss also counts this process, from which the command was forked.
    code = f"import re, sys; sys.argv[1:] = {list(words)!r}; from crmctl.main import main\ntry:\n main()\nexcept SystemExit: pass\n"
    code += "print('PEAK', re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    env = {**os.environ, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return int(done.stdout.rpartition("PEAK ")[2]) * 1024


PULL_PHASES = {"sync": "STATE/mirror/*", "write": ".crm.crmctl/new/*", "replace": ".crm.crmctl/[cm]o*"}
APPLY_PHASES = {kind: f"STATE/jobs/*/steps/*-{kind}-*" for kind in ("schema", "create", "update", "entries")}
"""Files and folders that show that a command has reached a phase."""


def kills(count: int, first: int = 0) -> bool:
    """Kill each command in each phase; the folder is complete or unchanged, and repeated applies lose and double nothing."""
    wrong, killed, choose = 0, Counter[str](), random.Random(7)
    for number in range(first, first + count):
        with running_service(fresh("one")) as one, running_service(fresh("two")) as two:
            for name in ("crm", "second", "STATE"):
                shutil.rmtree(name, ignore_errors=True)
            furnish(one, 2000 + number)
            run(one, "org", "pull", "crm")
            for phase, sign in PULL_PHASES.items():
                old, email = (Path("crm") / "MANIFEST.json").read_bytes(), f"{phase}@example.org"
                one.client.post(f"/api/v1/objects/{one.object_id('people')}/records", json={"data": {"email": email}})
                killed[f"pull, {phase}"] += killed_in(one, sign, choose.uniform(0, 0.02), "org", "pull", "crm")
                damaged = run(one, "org", "verify", "crm", code=None)
                is_old = (Path("crm") / "MANIFEST.json").read_bytes() == old
                is_mixed = is_old == (email in (Path("crm") / "records" / "people.jsonl").read_text())
                if damaged.returncode or is_mixed:
                    wrong += 1
                    print(f"{number}, pull, {phase}: old {is_old}, mixed {is_mixed}, {damaged.stdout} {damaged.stderr}", flush=True)
            for phase, sign in APPLY_PHASES.items():
                killed[f"apply, {phase}"] += killed_in(two, sign, choose.uniform(0, 0.1), "org", "apply", "crm", "--settle", "2")
            ends = [run(two, "org", "apply", "crm", "--settle", "2", "--map", "map.json", code=None).returncode]
            while ends[-1] == ExitCode.PARTIAL and len(ends) < MOST_REPEATS:  # rows in doubt
                ends.append(run(two, "org", "apply", "crm", "--settle", "10", "--map", "map.json", code=None).returncode)
            run(two, "org", "pull", "second")
            whole, again = by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())), by_new_ids(Path("second"), {})
            if whole != again or ends[-1]:
                wrong += 1
                print(f"{number}: apply ended with {ends}", flush=True)
                for name in whole.keys() | again.keys():
                    for side, rows, others in (("lost", whole, again), ("new", again, whole)):
                        print(number, name, side, [row for row in rows.get(name, ()) if row not in others.get(name, ())], flush=True)
            Path("map.json").unlink()
            print(f"{number + 1}: {wrong} wrong, killed: {dict(killed)}", flush=True)
    print(f"{sum(killed.values())} kills in {len(killed)} phases of pull and apply, {wrong} wrong: {dict(killed)}")
    return not wrong


def killed_in(service: RunningService, sign: str, seconds: float, *words: str) -> bool:
    """Kill a command so many seconds after a new file or folder shows that it has reached a phase. Return False if it ended before."""
    env = {**os.environ, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
    before = {path: path.stat().st_mtime_ns for path in Path().glob(sign)}
    with subprocess.Popen([str(CRMCTL), *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and {path: modified(path) for path in Path().glob(sign)} == before:
            time.sleep(0.001)
        time.sleep(seconds)
        is_running = process.poll() is None
        process.kill()
    return is_running


def modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def leaks(count: int) -> bool:
    with running_service(fresh("one")) as one:
        add_people(one, count)
        run(one, "org", "pull", "plain", "--with", "")
        begun = time.monotonic()
        run(one, "org", "pull", "masked", "--with", "", "--mask")
        seconds = time.monotonic() - begun
    text = Path("masked/records/people.jsonl").read_text().lower()
    lines = Path("plain/records/people.jsonl").read_text().splitlines()
    sources = {str(value).lower() for line in lines for value in json.loads(line)["data"].values()}
    pieces = {text[start : start + 5] for start in range(len(text))}
    found = [source for source in sources if len(source) >= 5 and source[:5] in pieces and source in text]
    print(f"{count:,} people: {len(found)} of {len(sources):,} source values in the masked folder; {seconds:.0f} s")
    return not found


COMMANDS: dict[str, tuple[Callable[..., bool], int]] = {
    "random": (random_organizations, 200), "pull": (large_pull, 100_000), "kills": (kills, 30), "leaks": (leaks, 20_000),
}  # fmt: skip


def main() -> int:
    measure, count = COMMANDS[sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="organizations-") as place:
        os.chdir(place)
        for kind in ("CONFIG", "STATE", "CACHE"):
            os.environ[f"CRMCTL_{kind}_DIR"] = str(Path(place, kind))
        chosen = [int(word) if word.isdecimal() else word for word in sys.argv[2:]] or [count]
        return not measure(*chosen)


if __name__ == "__main__":
    sys.exit(main())
