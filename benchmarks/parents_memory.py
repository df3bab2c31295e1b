"""Measure the memory of `crmctl bulk import --on-missing-ref create` as the number of parents grows.

`python benchmarks/parents_memory.py 20000 200000` imports that many rows each; every second row refers to a company of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import null_sink
from import_throughput import run
from measuring import CRMCTL, private_environment

PEOPLE, COMPANIES = null_sink.OBJECT_ID, "0b7ecf00-0000-4000-8000-000000000002"
COMPANY = {"id": "0b7ecf00-0000-4000-8000-000000000201", "slug": "company", "name": "Company", "type": "reference"}
ATTRIBUTES = {
    PEOPLE: [*null_sink.ATTRIBUTES, {**null_sink.ATTRIBUTES[0], **COMPANY, "config": {"allowed_object_id": COMPANIES}}],
    COMPANIES: [{**null_sink.ATTRIBUTES[0], "objectId": COMPANIES}],
}
OBJECTS = [
    null_sink.OBJECT,
    {**null_sink.OBJECT, "id": COMPANIES, "slug": "companies", "singularName": "Company", "pluralName": "Companies"},
]
START = datetime(2026, 1, 1, tzinfo=UTC)

names: list[str] = []


def answer(head: bytes, body: bytes) -> bytes:
    """The null sink, with the companies it has created."""
    address = urlsplit(head.split(b" ", 2)[1].decode())
    object_id = COMPANIES if COMPANIES in address.path else PEOPLE
    document: object
    if address.path.endswith("/records/bulk"):
        sent = [row["data"]["name"] for row in json.loads(body)["records"]]
        names.extend(sent if object_id == COMPANIES else ())
        document = {"created": len(sent), "updated": 0, "failed": []}
    elif address.path.endswith("/records"):
        document = listed({name: values[-1] for name, values in parse_qs(address.query).items()}) if object_id == COMPANIES else page([], 0)
    elif address.path.endswith("/attributes"):
        document = {"attributes": ATTRIBUTES[object_id]}
    elif address.path.endswith("/objects"):
        document = {"objects": OBJECTS}
    else:
        document = {**OBJECTS[object_id == COMPANIES], "attributes": ATTRIBUTES[object_id]}
    content = json.dumps(document).encode()
    headers = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        f"X-RateLimit-Limit: 1000000\r\nX-RateLimit-Remaining: 999999\r\nX-RateLimit-Reset: {int(time.time()) + 60}\r\n\r\n"
    )
    return headers.encode() + content


def listed(query: dict[str, str]) -> object:
    """Return one page of companies."""
    order = range(len(names)) if query.get("order") == "asc" else range(len(names) - 1, -1, -1)
    offset, limit = int(query.get("offset", 0)), int(query.get("limit", 50))
    records = [
        {"id": str(uuid.UUID(int=number + 1)), "objectId": COMPANIES, "data": {"name": names[number]}, "createdAt": at, "updatedAt": at}
        for number in order[offset : offset + limit]
        for at in [(START + timedelta(milliseconds=number)).isoformat().replace("+00:00", "Z")]
    ]
    return page(records, offset)


def page(records: list[object] | list[dict[str, object]], offset: int) -> object:
    """Return the list as the interface shows it."""
    return {"records": records, "pagination": {"total": len(names), "limit": 100, "offset": offset}}


def main(sizes: list[int]) -> None:
    """Print the peak memory of one import of each size."""
    with private_environment() as env, tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            file = Path(folder) / f"{size}.csv"
            rows = (f"Person {number},Company {number - number % 2}\n" for number in range(size))
            file.write_text("name,company\n" + "".join(rows), encoding="utf-8")
            sink = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
            with sink:
                assert sink.stdout is not None
                address = {"CRMCTL_BASE_URL": sink.stdout.readline().strip(), "CRMCTL_API_KEY": "any"}
                options = ("--ref", "company=companies.name", "--on-missing-ref", "create", "--quiet")
                used = run([CRMCTL, "bulk", "import", "people", str(file), *options], {**env, **address})
                sink.kill()
            print(f"{size:>9,} rows, {size // 2:>9,} parents: {used.mebibytes:6.0f} MiB, {used.seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main([int(size) for size in sys.argv[1:]])
    else:
        null_sink.answer = answer
        asyncio.run(null_sink.serve())
