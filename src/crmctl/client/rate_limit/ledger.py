"""The log of requests that all processes with one key share, in one SQLite file. `model` decides, `limiter` waits."""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from crmctl.client.rate_limit.model import SOON, Exchange, Learned, Usage, free_at, learn, time_for
from crmctl.frozen import frozen
from crmctl.write_ahead_log import begin_log

INTERACTIVE, BULK = 0, 1
"""Lanes; the lower one goes first."""

LOOK = 0.02
"""Seconds after which a waiting request looks again while another request is under way."""

IDLE_LOOK = 1.0
"""Seconds after which a waiting request looks again while no request is under way."""

TIDY = 1.0
"""Seconds between two removals of old requests and dead processes."""

IN_FLIGHT_SECONDS = 900.0
"""An unanswered request older than this belongs to a process that has ended."""

LOCKED = 3.0
"""Seconds to wait for the lock on the file."""

STALLED = 60.0
"""Seconds a process may stall between reading the clock and writing the file."""

TICKET_GRACE = 2.0
"""Seconds after which a place in the queue is lost if its owner did not look again as announced."""

_COLUMNS = ", ".join(f'"{field.name}"' for field in fields(Learned))
_LEARNED = f"learned_{zlib.crc32(_COLUMNS.encode()):08x}"
"""Versions of crmctl with different facts share only the log of the file."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS slot (
  id INTEGER PRIMARY KEY AUTOINCREMENT, sent REAL NOT NULL, done REAL, pid INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS slot_done ON slot (done);
CREATE TABLE IF NOT EXISTS ticket (id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL, pid INTEGER NOT NULL, wake REAL NOT NULL);
CREATE TABLE IF NOT EXISTS {_LEARNED} (id INTEGER PRIMARY KEY CHECK (id = 1), {_COLUMNS});
"""
_RECALL = f"SELECT {_COLUMNS} FROM {_LEARNED}"
_SAVE = f"REPLACE INTO {_LEARNED} VALUES (1{', ?' * len(fields(Learned))})"
_USAGE = """
SELECT (SELECT count(*) FROM slot WHERE done >= :from), (SELECT min(done) FROM slot WHERE done >= :begun),
  count(*), count(*) FILTER (WHERE sent >= :probe), (SELECT count(*) FROM slot WHERE done > :asked AND told = 0),
  (SELECT sent FROM slot ORDER BY id DESC LIMIT 1)
FROM slot WHERE done IS NULL
"""
_EXCHANGE = """
SELECT count(*), (SELECT count(*) FROM slot WHERE done >= :from), (SELECT count(*) FROM slot WHERE done >= :from AND done <= :sent),
  (SELECT count(*) FROM slot WHERE done > :asked)
FROM slot WHERE done IS NULL
"""

_SENT_BEFORE = """
SELECT sent FROM slot WHERE done < min(?, (SELECT sent FROM slot WHERE done < ? ORDER BY sent DESC LIMIT 1 OFFSET ?))
ORDER BY done DESC LIMIT 1
"""


@frozen
class Wait:
    """`until`: when there may be room; `look`: when to ask again; `ticket` keeps the place in the queue."""

    until: float
    look: float
    ticket: int


class Ledger:
    """One file, or memory if `path` is None; safe for threads and processes. Raises sqlite3.Error and OSError if unusable."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._tidied: float | None = None
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        name = ":memory:" if path is None else str(path)
        self._base = sqlite3.connect(name, timeout=LOCKED, isolation_level=None, check_same_thread=False)
        try:
            # A power cut may lose some requests; that is not worth an fsync per request.
            self._base.execute("PRAGMA synchronous=OFF")
            if path is not None:
                begin_log(self._base, LOCKED)
            self._base.executescript(_SCHEMA)
        except sqlite3.Error:
            self._base.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def acquire(self, now: float, lane: int, ticket: int | None = None) -> int | Wait:
        """Take a slot, which the caller closes with the answer, or a place in the queue of this lane."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            self._tidy(now)
            learned = self._learned()
            usage = self._usage(learned, now)
            free = free_at(learned, usage, now, bulk=lane == BULK)
            if free <= now and not self._is_behind(lane, ticket, now):
                if ticket is not None:
                    self._base.execute("DELETE FROM ticket WHERE id = ?", (ticket,))
                return self._insert("INSERT INTO slot (sent, pid) VALUES (?, ?)", now, self._pid)
            look = now + SOON if free <= now else min(free, now + (LOOK if usage.under_way else IDLE_LOOK))
            if learned.blocked_until > now:
                look = learned.blocked_until
            if ticket is None:
                ticket = self._insert("INSERT INTO ticket (lane, pid, wake) VALUES (?, ?, ?)", lane, self._pid, look)
            else:
                self._base.execute("REPLACE INTO ticket (id, lane, pid, wake) VALUES (?, ?, ?, ?)", (ticket, lane, self._pid, look))
            return Wait(max(free, now), look, ticket)

    def admit(self, now: float) -> int:
        """Return a slot for a request that went without asking."""
        with self._lock, self._base:
            return self._insert("INSERT INTO slot (sent, pid) VALUES (?, ?)", now, self._pid)

    def answered(self, slot: int, now: float, wall: float, status: int, headers: Mapping[str, str]) -> bool:
        """Close a slot, learn from the answer, and return whether requests may now go without asking."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            row = self._base.execute("SELECT sent FROM slot WHERE id = ?", (slot,)).fetchone()
            if row is None:
                return False
            sent = float(row[0])
            learned = self._learned()
            self._base.execute("UPDATE slot SET done = ?, told = ? WHERE id = ?", (now, "x-ratelimit-remaining" in headers, slot))
            values = {"from": sent - learned.window, "asked": learned.asked, "sent": sent}
            under_way, recent, before, later = self._base.execute(_EXCHANGE, values).fetchone()

            def sent_before(number: int) -> float | None:
                earlier = self._base.execute(_SENT_BEFORE, (sent, sent, max(0, number - 2))).fetchone()
                return None if earlier is None else float(earlier[0])

            counts = (under_way + recent, before + 1, under_way + later)
            learned = learn(learned, Exchange(sent, now, wall, status, headers, *counts, sent_before))
            self._base.execute(_SAVE, tuple(vars(learned).values()))
            return learned.is_unlimited

    def lost(self, slot: int, now: float, *, never_sent: bool) -> None:
        """Close the slot of an unanswered request; a request that was never sent does not count."""
        with self._lock, self._base:
            if never_sent:
                self._base.execute("DELETE FROM slot WHERE id = ?", (slot,))
            else:
                self._base.execute("UPDATE slot SET done = ? WHERE id = ?", (now, slot))

    def leave(self, ticket: int) -> None:
        """Give up a place in the queue."""
        with self._lock, self._base:
            self._base.execute("DELETE FROM ticket WHERE id = ?", (ticket,))

    def time_for(self, now: float, requests: int, waits: float = 0.0, *, bulk: bool = False) -> float:
        with self._lock, self._base:
            learned = self._learned()
            return time_for(learned, self._usage(learned, now), requests, now, waits, bulk=bulk)

    def _usage(self, learned: Learned, now: float) -> Usage:
        start = now - learned.window
        values = {"from": start, "begun": max(start, learned.opened), "probe": learned.blocked_until, "asked": learned.asked}
        done, oldest, under_way, probes, untold, newest = self._base.execute(_USAGE, values).fetchone()

        def answers(skip: int, count: int) -> list[float]:
            query = "SELECT done FROM slot WHERE done >= ? ORDER BY done LIMIT ? OFFSET ?"
            return [float(done) for (done,) in self._base.execute(query, (start, count, max(0, skip)))]

        return Usage(
            counting=under_way + done,
            since=under_way + untold,
            probes=probes,
            under_way=under_way,
            oldest=now if oldest is None else oldest,
            newest=-1.0 if newest is None else newest,
            answers=answers,
        )

    def _is_behind(self, lane: int, ticket: int | None, now: float) -> bool:
        """Whether another request goes first: any in a lower lane, or an earlier one in this lane."""
        place = ticket if ticket is not None else 1 << 62
        query = "SELECT id, pid FROM ticket WHERE (lane < ? OR (lane = ? AND id < ?)) AND wake BETWEEN ? AND ? ORDER BY lane, id"
        for other, pid in self._base.execute(query, (lane, lane, place, now - TICKET_GRACE, now + 3600.0)).fetchall():
            if pid == self._pid or _is_alive(pid):
                return True
            self._base.execute("DELETE FROM ticket WHERE id = ?", (other,))
        return False

    def _learned(self) -> Learned:
        row = self._base.execute(_RECALL).fetchone()
        return Learned() if row is None else Learned(*row)

    def _tidy(self, now: float) -> None:
        """Remove old requests and those of dead processes, once per TIDY seconds."""
        if self._tidied is not None and 0 <= now - self._tidied < TIDY:
            return
        self._tidied = now
        newest = self._base.execute("SELECT sent FROM slot ORDER BY id DESC LIMIT 1").fetchone()
        if newest is not None and newest[0] > now + STALLED:
            # The clock counts from the start of the machine; these requests are older than that.
            for table in ("slot", "ticket", _LEARNED):
                self._base.execute(f"DELETE FROM {table}")
        kept = max(2 * self._learned().window, 120.0)
        self._base.execute("DELETE FROM slot WHERE done < ?", (now - kept,))
        self._base.execute(f"UPDATE {_LEARNED} SET remaining = -1 WHERE asked < ?", (now - kept,))
        self._base.execute("DELETE FROM ticket WHERE wake < ? OR wake > ?", (now - TICKET_GRACE, now + 3600.0))
        # Requests of a killed process may have arrived until now.
        for (pid,) in self._base.execute("SELECT DISTINCT pid FROM slot WHERE done IS NULL AND pid <> ?", (self._pid,)).fetchall():
            if not _is_alive(pid):
                self._base.execute("UPDATE slot SET done = ? WHERE done IS NULL AND pid = ?", (now, pid))
        self._base.execute("UPDATE slot SET done = sent WHERE done IS NULL AND sent < ?", (now - IN_FLIGHT_SECONDS,))

    def _insert(self, statement: str, *values: float) -> int:
        return int(self._base.execute(statement, values).lastrowid or 0)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # on Windows signal 0 ends the process; tickets and requests expire by time
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
