"""Who works on a job: one process at a time, recognised by host, boot, process id and start time. A dead holder's lease is free at once."""

from __future__ import annotations

import os
import socket
import sqlite3
from dataclasses import astuple, dataclass
from pathlib import Path

from crmctl.errors import UsageError

HEARTBEAT_SECONDS = 10.0
"""How often a holder writes a sign of life."""

STALE_SECONDS = 90.0
"""A holder that cannot be looked at from here (another host or container) counts as dead after this much silence."""

TABLE = """
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    beat REAL NOT NULL
)
"""


@dataclass(frozen=True)
class Holder:
    """A process, told apart from a later one that got the same id."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Holder:
        return cls(socket.gethostname(), _boot_id(), os.getpid(), start_time(os.getpid()))


def acquire(connection: sqlite3.Connection, now: float) -> None:
    """Take the lease inside the caller's transaction. Raises UsageError when a live process holds it."""
    me = Holder.this_process()
    row = connection.execute("SELECT host, boot, pid, started, beat FROM lease").fetchone()
    if row is not None:
        holder = Holder(*row[:4])
        if holder != me and _is_alive(holder, me, silence=now - row[4]):
            raise UsageError(f"another process (pid {holder.pid} on {holder.host}) is working on this job", code="job_running")
    connection.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?)", (*astuple(me), now))


def beat(connection: sqlite3.Connection, now: float) -> None:
    connection.execute("UPDATE lease SET beat = ?", (now,))


def release(connection: sqlite3.Connection) -> None:
    me = Holder.this_process()
    connection.execute("DELETE FROM lease WHERE host = ? AND boot = ? AND pid = ? AND started = ?", astuple(me))


def is_held(connection: sqlite3.Connection, now: float) -> bool:
    """Whether a live process works on the job."""
    row = connection.execute("SELECT host, boot, pid, started, beat FROM lease").fetchone()
    return row is not None and _is_alive(Holder(*row[:4]), Holder.this_process(), silence=now - row[4])


def _is_alive(holder: Holder, me: Holder, *, silence: float) -> bool:
    if holder.host != me.host or not holder.started:
        return silence < STALE_SECONDS
    return holder.boot == me.boot and start_time(holder.pid) == holder.started


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Start time of a process in ticks since boot; empty where it does not run, is a zombie, or cannot be looked at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name may hold blanks and brackets; the fields after its last bracket are state, ppid, ... and starttime as the 20th.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] == "Z" else fields[19]
