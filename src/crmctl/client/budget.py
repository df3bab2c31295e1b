"""The log of requests that all processes with one key share, in one SQLite file. Decides nothing: `allowance` does, `pacing` waits."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from crmctl.client.allowance import NEVER, Exchange, Learned, Usage, floor, learn, probe_times, room

INTERACTIVE, BULK = 0, 1
"""Lanes; the lower one goes first."""

SOON = 0.01
"""Seconds until a waiting request looks again when another one is about to change the picture."""

LOOK = 0.25
"""Seconds after which any waiting request looks again: an answer to another process may have brought news."""

IN_FLIGHT_SECONDS = 900.0
"""A request without an end for this long belongs to a process that is gone."""

TICKET_GRACE = 2.0
"""Seconds after which a place in the queue is lost when its owner did not look again as announced."""

_COLUMNS = tuple(field.name for field in fields(Learned))
_KINDS: tuple[type[int] | type[float], ...] = tuple(float if isinstance(value, float) else int for value in astuple(Learned()))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS slot (
  id INTEGER PRIMARY KEY AUTOINCREMENT, sent REAL NOT NULL, done REAL, pid INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS slot_done ON slot (done);
CREATE TABLE IF NOT EXISTS ticket (id INTEGER PRIMARY KEY AUTOINCREMENT, lane INTEGER NOT NULL, pid INTEGER NOT NULL, wake REAL NOT NULL);
CREATE TABLE IF NOT EXISTS learned ({", ".join(f'"{name}" REAL' for name in _COLUMNS)});
"""


@dataclass(frozen=True)
class Grant:
    """A request may go; its slot is to be closed with the answer."""

    slot: int


@dataclass(frozen=True)
class Wait:
    """Not now. `until`: when there may be room by what is known; `look`: when to ask again; `ticket` keeps the place in the queue."""

    until: float
    look: float
    ticket: int


class Ledger:
    """One file, or memory when `path` is None; safe for threads and processes. Raises sqlite3.Error and OSError for an unusable file."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        name = ":memory:" if path is None else str(path)
        self._base = sqlite3.connect(name, timeout=1.0, isolation_level=None, check_same_thread=False)
        # What a power cut could lose here is not worth an fsync per request.
        self._base.execute("PRAGMA synchronous=OFF")
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def acquire(self, now: float, lane: int, ticket: int | None = None) -> Grant | Wait:
        """Take a slot, or a place in the queue of this lane."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            learned = self._learned(now)
            free_at, look = self._free_at(learned, now, lane)
            if free_at <= now and not self._is_behind(lane, ticket, now):
                if ticket is not None:
                    self._base.execute("DELETE FROM ticket WHERE id = ?", (ticket,))
                return Grant(self._insert("INSERT INTO slot (sent, pid) VALUES (?, ?)", now, self._pid))
            look = now + SOON if free_at <= now else look
            if ticket is None:
                ticket = self._insert("INSERT INTO ticket (lane, pid, wake) VALUES (?, ?, ?)", lane, self._pid, look)
            else:
                self._base.execute(
                    "INSERT OR REPLACE INTO ticket (id, lane, pid, wake) VALUES (?, ?, ?, ?)", (ticket, lane, self._pid, look)
                )
            return Wait(max(free_at, now), look, ticket)

    def answered(self, slot: int, now: float, wall: float, status: int, headers: Mapping[str, str]) -> None:
        """Close a slot and learn from the answer."""
        with self._lock, self._base:
            self._base.execute("BEGIN IMMEDIATE")
            row = self._base.execute("SELECT sent FROM slot WHERE id = ?", (slot,)).fetchone()
            if row is None:
                return
            learned = self._learned(now)
            self._base.execute("UPDATE slot SET done = ?, told = ? WHERE id = ?", (now, "x-ratelimit-remaining" in headers, slot))
            counted = self._count("done IS NULL OR done > ?", row[0] - learned.window)
            since = self._count("done IS NULL OR done > ?", learned.asked)
            self._save(learn(learned, Exchange(row[0], now, wall, status, headers, counted, since)))

    def lost(self, slot: int, now: float, *, never_sent: bool) -> None:
        """Close a slot whose request got no answer; one that never left does not count."""
        with self._lock, self._base:
            if never_sent:
                self._base.execute("DELETE FROM slot WHERE id = ?", (slot,))
            else:
                self._base.execute("UPDATE slot SET done = ? WHERE id = ?", (now, slot))

    def leave(self, ticket: int) -> None:
        """Give up a place in the queue."""
        with self._lock, self._base:
            self._base.execute("DELETE FROM ticket WHERE id = ?", (ticket,))

    def _free_at(self, learned: Learned, now: float, lane: int) -> tuple[float, float]:
        """When a request of this lane may go by what is known, and when to look again (earlier where an answer under way may tell more)."""
        if learned.blocked_until > now:
            return learned.blocked_until, learned.blocked_until
        if learned.probing:
            under_way = self._count("done IS NULL AND sent >= ?", learned.blocked_until)
            return (now + SOON, now + SOON) if under_way else (now, now)
        if learned.limit <= 0:
            return now, now
        usage = self._usage(learned, now)
        free = room(learned, usage)
        if free > (wanted := floor(learned, usage, now, bulk=lane == BULK)):
            return now, now
        moments = self._releases(learned, now, wanted + 1 - (learned.limit - learned.foreign - usage.counting))
        if lane == BULK and free > 0:
            # The floor sinks by one as each of these passes; once fewer than `free` are ahead, a request may go.
            ahead = sorted(moment for moment in probe_times(learned, usage) if moment > now)
            moments += ahead[len(ahead) - free : len(ahead) - free + 1]
        if learned.asked < learned.latest < NEVER:
            if now >= learned.latest and usage.probes == 0:
                return now, now  # the window has certainly ended: one request goes and tells what there is
            moments.append(learned.latest if now < learned.latest else now + SOON)
        free_at = max(min(moments, default=now + SOON), now + 0.001)
        return free_at, min(free_at, now + LOOK)

    def _usage(self, learned: Learned, now: float) -> Usage:
        in_flight, since, probes = self._base.execute(
            "SELECT (SELECT count(*) FROM slot WHERE done IS NULL),"
            " (SELECT count(*) FROM slot WHERE done IS NULL OR (told = 0 AND done > ?)),"
            " (SELECT count(*) FROM slot WHERE done IS NULL AND sent >= ?)",
            (learned.asked, learned.latest),
        ).fetchone()
        done, oldest = self._base.execute("SELECT count(*), min(done) FROM slot WHERE done > ?", (now - learned.window,)).fetchone()
        return Usage(in_flight + done, since, probes, now if oldest is None else oldest)

    def _releases(self, learned: Learned, now: float, wanted: int) -> list[float]:
        """When the `wanted`-th of the requests that count stops counting."""
        query = "SELECT done FROM slot WHERE done > ? ORDER BY done LIMIT 1 OFFSET ?"
        row = self._base.execute(query, (now - learned.window, max(0, wanted - 1))).fetchone()
        return [] if row is None else [row[0] + learned.window + 0.001]

    def _is_behind(self, lane: int, ticket: int | None, now: float) -> bool:
        """Whether somebody else is to go first: anybody in a lower lane, whoever came earlier in the same."""
        self._base.execute("DELETE FROM ticket WHERE wake < ? OR wake > ?", (now - TICKET_GRACE, now + LOOK + 3600.0))
        place = ticket if ticket is not None else 1 << 62
        query = "SELECT id, pid FROM ticket WHERE lane < ? OR (lane = ? AND id < ?) ORDER BY lane, id"
        for other, pid in self._base.execute(query, (lane, lane, place)).fetchall():
            if pid == self._pid or _is_alive(pid):
                return True
            self._base.execute("DELETE FROM ticket WHERE id = ?", (other,))
        return False

    def _learned(self, now: float) -> Learned:
        """What is known, after dropping what is over."""
        newest = self._base.execute("SELECT sent FROM slot ORDER BY id DESC LIMIT 1").fetchone()
        if newest is not None and newest[0] > now + 1.0:
            # The clock counts from the start of the machine: these are of an earlier one.
            for table in ("slot", "ticket", "learned"):
                self._base.execute(f"DELETE FROM {table}")  # noqa: S608
        row = self._base.execute("SELECT * FROM learned").fetchone()
        learned = Learned() if row is None else _restored(row)
        kept = max(2 * learned.window, 120.0)
        self._base.execute("DELETE FROM slot WHERE done < ?", (now - kept,))
        self._settle_abandoned(now)
        return learned if learned.asked >= now - kept else replace(learned, remaining=-1)

    def _settle_abandoned(self, now: float) -> None:
        """A killed process leaves requests without an end; they may have arrived until now."""
        for (pid,) in self._base.execute("SELECT DISTINCT pid FROM slot WHERE done IS NULL AND pid <> ?", (self._pid,)).fetchall():
            if not _is_alive(pid):
                self._base.execute("UPDATE slot SET done = ? WHERE done IS NULL AND pid = ?", (now, pid))
        self._base.execute("UPDATE slot SET done = sent WHERE done IS NULL AND sent < ?", (now - IN_FLIGHT_SECONDS,))

    def _save(self, learned: Learned) -> None:
        self._base.execute("DELETE FROM learned")
        self._base.execute(f"INSERT INTO learned VALUES ({', '.join('?' * len(_COLUMNS))})", [getattr(learned, name) for name in _COLUMNS])  # noqa: S608

    def _count(self, condition: str, value: float) -> int:
        return int(self._base.execute(f"SELECT count(*) FROM slot WHERE {condition}", (value,)).fetchone()[0])  # noqa: S608

    def _insert(self, statement: str, *values: float) -> int:
        return int(self._base.execute(statement, values).lastrowid or 0)


def _restored(row: tuple[float, ...]) -> Learned:
    values: list[Any] = [kind(value) for kind, value in zip(_KINDS, row, strict=True)]
    return Learned(*values)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 ends a process elsewhere; the times in the tables have to do
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
