"""Real processes ended with SIGKILL at random moments: `crmctl bulk import` and `resume`, and the embedded service behind them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.measuring import CRMCTL
from tests.support.faultruns import Outcome
from tests.support.service import ServiceProcess, service_process

ROWS = 1500
TRIES = 20


def kill_clients(runs: int, seed: int = 1) -> list[Outcome]:
    """Each run imports a file whose client is killed once or twice on its way, then resumed to the end."""
    random_number = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, service_process(Path(folder) / "data", "--rate-limit", "0") as service:
        return [_run(Path(folder), service, number, random_number, of_service=False)[0] for number in range(runs)]


def kill_services(runs: int, seed: int = 2) -> list[Outcome]:
    """Each run imports a file while the service is killed and started again on the same data and port."""
    random_number = random.Random(seed)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        service = service_process(Path(folder) / "data", "--rate-limit", "0")
        try:
            for number in range(runs):
                outcome, service = _run(Path(folder), service, number, random_number, of_service=True)
                outcomes.append(outcome)
        finally:
            service.kill()
    return outcomes


def _run(folder: Path, service: ServiceProcess, number: int, chance: random.Random, *, of_service: bool) -> tuple[Outcome, ServiceProcess]:
    tag = f"run{number}"
    file = folder / f"{tag}.csv"
    file.write_text("email,score\n" + "".join(f"{tag}-{n}@acme.com,{n}\n" for n in range(ROWS)))
    env = {
        **os.environ,
        "CRMCTL_BASE_URL": service.base_url,
        "CRMCTL_API_KEY": service.key,
        **{f"CRMCTL_{kind}_DIR": str(folder / f"{tag}-{kind.lower()}") for kind in ("STATE", "CONFIG", "CACHE")},
    }
    client = _start(env, "bulk", "import", "people", str(file), "--settle", "1", "--timeout", "5", "--max-wait", "3")
    time.sleep(0.3 + chance.random() * 1.5)
    if of_service:
        service = _restarted(service, folder)
    elif client.poll() is None:
        client.send_signal(signal.SIGKILL)
    client.communicate()
    summary, said = {"inDoubt": 0}, b""
    for _ in range(TRIES):
        jobs = json.loads(subprocess.run([CRMCTL, "bulk", "jobs", "-o", "json"], env=env, capture_output=True, check=True).stdout)
        if jobs and not jobs[0]["resumable"]:
            summary = jobs[0]
            break
        begun = ["bulk", "resume", "--last"] if jobs else ["bulk", "import", "people", str(file)]
        said = _start(env, *begun, "--settle", "1", "--timeout", "5").communicate()[1]
    else:
        print(f"{tag} does not end: {said.decode()}", file=sys.stderr)
    return _count(service, tag, summary["inDoubt"]), service


def _start(env: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([CRMCTL, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _restarted(service: ServiceProcess, folder: Path) -> ServiceProcess:
    port = service.base_url.rsplit(":", 1)[1]
    service.kill()
    return service_process(folder / "data", "--port", port, "--rate-limit", "0", key=service.key)


def _count(service: ServiceProcess, tag: str, in_doubt: int) -> Outcome:
    there: Counter[str] = Counter()
    with service.client() as client:
        objects = client.get("/api/v1/objects").json()["objects"]
        people = next(one["id"] for one in objects if one["slug"] == "people")
        for offset in range(0, ROWS * 3, 100):
            query = {"filter[email][startsWith]": f"{tag}-", "limit": "100", "offset": str(offset), "order": "asc"}
            rows = client.get(f"/api/v1/objects/{people}/records", params=query).json()["records"]
            there.update(row["data"]["email"] for row in rows)
            if len(rows) < 100:
                break
    missing = sum(f"{tag}-{n}@acme.com" not in there for n in range(ROWS))
    return Outcome(max(0, missing - in_doubt), sum(there.values()) - len(there), in_doubt, 0, 0)
