"""Compare the mirror with dlt's REST source on one service: requests, seconds, and wrong rows after changes and deletions.

    python benchmarks/mirror_dlt.py [RECORDS]        (default 5000; installs dlt into its own virtual environment, or uses DLT_PYTHON)

dlt reads incrementally by `updatedAt`, newest first, and merges by id into DuckDB, as its documentation shows. Between two runs, 1 % of the
records change and ten are deleted. Both use one `crmctl serve`, whose log counts the requests.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from benchmarks.measuring import CRMCTL
from tests.support.service import ServiceProcess, service_process

PAGE = 100

LOADER = """
import json, os, sys
import dlt
from dlt.sources.rest_api import rest_api_source

folder, url, people = sys.argv[1:]
os.chdir(folder)
source = rest_api_source({
    "client": {
        "base_url": url + "/api/v1/",
        "auth": {"type": "bearer", "token": os.environ["CRMCTL_API_KEY"]},
        "paginator": {"type": "offset", "limit": 100, "total_path": "pagination.total"},
    },
    "resources": [{
        "name": "people",
        "primary_key": "id",
        "write_disposition": "merge",
        "max_table_nesting": 0,
        "endpoint": {
            "path": f"objects/{people}/records",
            "params": {"sort": "updated_at", "order": "desc"},
            "data_selector": "records",
            "incremental": {"cursor_path": "updatedAt", "initial_value": "1970-01-01T00:00:00Z", "row_order": "desc"},
        },
    }],
})
pipeline = dlt.pipeline("crm", destination=dlt.destinations.duckdb("loaded.duckdb"), dataset_name="crm", pipelines_dir=folder)
pipeline.run(source)
with pipeline.sql_client() as client:
    print(json.dumps([list(map(str, row)) for row in client.execute_sql("SELECT id, data FROM people")]))
"""


def loader(folder: Path) -> str:
    """Return a Python that has dlt."""
    if known := os.environ.get("DLT_PYTHON"):
        return known
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "dlt[duckdb]"], check=True)
    return python


class Bench:
    """A service with people, a mirror of them, and dlt's copy."""

    def __init__(self, folder: Path, service: ServiceProcess, python: str) -> None:
        self.folder, self.service, self.python = folder, service, python
        self.client = service.client()
        objects = self.client.get("/api/v1/objects").json()["objects"]
        self.people = next(one["id"] for one in objects if one["slug"] == "people")
        self.path = f"/api/v1/objects/{self.people}/records"
        self.env = {
            **os.environ, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key,
            **{f"CRMCTL_{kind}_DIR": str(folder / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")},
        }  # fmt: skip
        (folder / "load.py").write_text(LOADER)
        (folder / "dlt").mkdir()

    def ask(self, method: str, path: str, **body: Any) -> Any:
        answer: httpx.Response = self.client.request(method, path, json=body or None)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def fill(self, count: int) -> None:
        for first in range(0, count, PAGE):
            rows = [{"data": {"email": f"p{n}@acme.com", "score": n}} for n in range(first, min(first + PAGE, count))]
            self.ask("POST", f"{self.path}/bulk", mode="create", records=rows)

    def change(self, truth: dict[str, Any]) -> None:
        """Change one in a hundred, delete ten."""
        ids = sorted(truth)
        changed, gone = ids[7::100], ids[11 :: len(ids) // 10][:10]
        for first in range(0, len(changed), PAGE):
            rows = [{"id": one, "data": {"score": -1}} for one in changed[first : first + PAGE]]
            self.ask("POST", f"{self.path}/bulk", mode="upsert", records=rows)
        self.ask("DELETE", f"{self.path}/bulk", ids=gone)

    def truth(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while page := self.ask("GET", f"{self.path}?limit={PAGE}&offset={len(found)}&order=asc")["records"]:
            found.update((one["id"], one["data"]) for one in page)
        return found

    def by_mirror(self) -> dict[str, Any]:
        subprocess.run([CRMCTL, "mirror", "sync", "people", "--quiet"], env=self.env, check=True, stdout=subprocess.DEVNULL)
        [path] = (self.folder / "state" / "mirror").glob("*.sqlite")
        with closing(sqlite3.connect(path)) as db:
            return {one: json.loads(wire)["data"] for one, wire in db.execute("SELECT id, _data FROM people")}

    def by_dlt(self) -> dict[str, Any]:
        command = [self.python, str(self.folder / "load.py"), str(self.folder / "dlt"), self.service.base_url, self.people]
        env = {**self.env, "RUNTIME__DLTHUB_TELEMETRY": "false"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return {one: json.loads(data) for one, data in json.loads(done.stdout.splitlines()[-1])}

    def asked(self) -> int:
        """Return the number of requests in the service's log."""
        return sum(line.startswith("{") for line in self.service.stderr.splitlines())


def main(count: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = loader(folder)
        service = service_process(folder / "data", "--rate-limit", "0", "--log", "json")
        try:
            bench = Bench(folder, service, python)
            bench.fill(count)
            print("| what | run | requests | seconds | wrong rows |\n|---|---|---|---|---|")
            wrong = 0
            for run in ("the first", "1 % changed, 10 deleted"):
                truth = bench.truth()
                for what, load in (("mirror", bench.by_mirror), ("dlt", bench.by_dlt)):
                    before, begun = bench.asked(), time.monotonic()
                    held = load()
                    took, asked = time.monotonic() - begun, bench.asked() - before
                    off = sum(held.get(one) != truth.get(one) for one in held.keys() | truth.keys())
                    wrong += off if what == "mirror" else 0
                    print(f"| {what} | {run} | {asked:,} | {took:.1f} | {off} |", flush=True)
                bench.change(truth)
        finally:
            service.kill()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000))
