"""Reports and their stored runs. The reports folder knows what a report asks and how it is computed."""

from __future__ import annotations

from typing import Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.service.store import logs
from crmctl.service.store.members import author
from crmctl.service.store.record_tables import require_description, require_name
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, required, to_micros, update
from crmctl.values.value_readers import canonical_uuid

COMPLETED, FAILED = "completed", "failed"

_REPORTS = Rows("report", "report", "id, name, description, last_run_at, created_at, creator", creator=jsontext.loads)
_RUN = "id, status, result_count, error, started_at, completed_at"
_RUNS = Rows("report_run", "run", _RUN)
_RESULTS = Rows(
    "report_run",
    "run",
    f"{_RUN}, truncated, columns, results",
    truncated=bool,
    columns=jsontext.loads,
    results=jsontext.loads,
)


def _run(run: Json) -> Json:
    """Return a run, with its `error` if it failed."""
    return run if run["error"] is not None else {field: value for field, value in run.items() if field != "error"}


@frozen
class ReportOutcome:
    """The result of a run. `results` is a JSON array of objects with the `columns` as keys; `error` is set when the run failed."""

    columns: list[str]
    results: str
    count: int
    truncated: bool = False
    error: str | None = None


def make_room(tx: Tx, most: int) -> int:
    """Delete the oldest runs, never the newest of a report, until all results have at most `most` bytes. Returns the number deleted."""
    runs = (
        "SELECT number, sum(size) OVER (ORDER BY number DESC) AS total, "
        "row_number() OVER (PARTITION BY report_id ORDER BY number DESC) AS place FROM report_run"
    )
    old = f"SELECT number FROM ({runs}) AS run WHERE total > ? AND place > 1"
    return tx.execute(f"DELETE FROM report_run WHERE number IN ({old})", (most,))


def list_reports(tx: Tx) -> list[Json]:
    return _REPORTS.all(tx, "ORDER BY number")


def get_report(tx: Tx, report_id: str) -> Json:
    """Return a report with its `object`, None if it was deleted, and its `definition`. Raises NotFound."""
    report = _REPORTS.get(tx, report_id)
    object_id, question = required(tx.one("SELECT object_id, question FROM report WHERE id = ?", (report["id"],)))
    named = tx.one("SELECT id, plural_name, slug FROM crm_object WHERE id = ?", (object_id,))
    of_object = None if named is None else dict(zip(("id", "pluralName", "slug"), named, strict=True))
    return report | {"object": of_object, "definition": jsontext.loads(question)}


def save_report(tx: Tx, name: str, columns: Json, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the report of this name, of which `columns` are description, object_id and question. Returns `created`, `updated`
    or `unchanged`; raises BadRequest."""
    values = columns | {"question": jsontext.dumps(columns["question"], sort_keys=True)}
    values["description"] = require_description(columns["description"])
    existing = tx.one(f"SELECT {', '.join(values)} FROM report WHERE name = ?", (require_name(name, "name"),))
    if existing == tuple(values.values()):
        return "unchanged"
    at = to_micros(stamp["now"])
    if existing is not None:
        update(tx, "report", values | {"updated_at": at}, "name = ?", name)
        names = ("description", "objectId", "definition")
        changed = logs.differences(dict(zip(names, existing, strict=True)), dict(zip(names, values.values(), strict=True)))
        logs.note(tx, "report.updated", name, changed, now=stamp["now"])
        return "updated"
    created = {"id": stamp["ids"](), "name": name, "creator": jsontext.dumps(author(tx, created_by)), "created_at": at, "updated_at": at}
    insert(tx, "report", created | values)
    logs.note(tx, "report.created", name, now=stamp["now"])
    return "created"


def rename_report(tx: Tx, report_id: str, name: str) -> None:
    """Rename a report. The caller has checked that the name is free. Raises NotFound, BadRequest."""
    tx.execute("UPDATE report SET name = ? WHERE id = ?", (require_name(name, "name"), _REPORTS.get(tx, report_id)["id"]))


def delete_report(tx: Tx, report_id: str) -> None:
    report = _REPORTS.get(tx, report_id)
    for table, column in (("report_run", "report_id"), ("report", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {column} = ?", (report["id"],))
    logs.note(tx, "report.deleted", report["id"], {"name": report["name"]})


def count_runs(tx: Tx, report_id: str) -> int:
    return int(required(tx.one("SELECT count(*) FROM report_run WHERE report_id = ?", (report_id,)))[0])


def last_runs(tx: Tx) -> dict[str, Json]:
    """Return the last run of each report that has one, by the report's id, without results."""
    sql = f"SELECT report_id, {_RUNS.columns} FROM report_run WHERE number IN (SELECT max(number) FROM report_run GROUP BY report_id)"
    return {row[0]: _run(_RUNS.show(row[1:])) for row in tx.all(sql)}


def add_run(tx: Tx, report_id: str, outcome: ReportOutcome, *, started_at: float, **stamp: Unpack[Stamp]) -> Json:
    known_id = _REPORTS.get(tx, report_id)["id"]
    status = COMPLETED if outcome.error is None else FAILED
    row = (stamp["ids"](), status, outcome.count, outcome.error, to_micros(started_at), to_micros(stamp["now"]))
    tx.execute(
        f"INSERT INTO report_run (report_id, truncated, columns, results, size, {_RUNS.columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (known_id, int(outcome.truncated), jsontext.dumps(outcome.columns), outcome.results, len(outcome.results), *row),
    )
    tx.execute("UPDATE report SET last_run_at = ? WHERE id = ?", (row[-1], known_id))
    return _run(_RUNS.show(row))


def list_runs(tx: Tx, report_id: str, limit: int = 20, offset: int = 0) -> list[Json]:
    known_id = _REPORTS.get(tx, report_id)["id"]
    return list(map(_run, _RUNS.all(tx, "WHERE report_id = ? ORDER BY number DESC LIMIT ? OFFSET ?", (known_id, limit, offset))))


def get_run(tx: Tx, report_id: str, run_id: str) -> Json:
    """Return a run with its `columns`, `results` and `truncated`, whether there were more. Raises NotFound."""
    known_id = _REPORTS.get(tx, report_id)["id"]
    run = _RESULTS.find(tx, "report_id = ? AND id = ?", known_id, canonical_uuid(run_id) or "")
    if run is None:
        raise NotFound(f"there is no run with the id {run_id} of this report")
    return _run(run)
