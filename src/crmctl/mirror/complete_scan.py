"""All records of an object read into a file beside the mirror, page by page; what an interrupted scan has left is gone on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.export.collected_records import Staging
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.counted_reads import CountedReads
from crmctl.bulk.read.full_scan import Sweep, SweepState
from crmctl.bulk.read.sorted_lists import Listing, PassStatistics
from crmctl.bulk.read.stable_pages import Position
from crmctl.clock import Clock

RESUMED_WITHIN = 24 * 3600.0
"""Seconds within which an interrupted scan is gone on with."""


@dataclass(frozen=True)
class ScanBegin:
    """When a scan began, by the service's clock and by this machine's, and the newest change then; in microseconds."""

    started: int
    taken: int
    newest: int | None


@dataclass(frozen=True)
class CompleteScan:
    """What a scan came to. `is_stable`: every group of one creation time is known to be complete."""

    begin: ScanBegin
    is_stable: bool


@contextmanager
def staged(mirror: Path, object_id: str, request: Mapping[str, Any], clock: Clock, *, resumes: bool = True) -> Iterator[Staging]:
    """The file of a scan: what an interrupted scan of the same `request` has left where it `resumes`, else an empty one. It goes when the
    block ends well."""
    place = _place(mirror, object_id)
    staging, now = Staging(place), clock.now()
    begun = staging.noted("begun")
    fits = staging.noted("request") == dict(request) and isinstance(begun, int | float) and 0 <= now - begun < RESUMED_WITHIN
    if not (resumes and fits):
        staging.close()
        _remove(place)
        staging = Staging(place)
        with staging.step():
            staging.note("request", dict(request))
            staging.note("begun", now)
    with staging:
        yield staging
    _remove(place)


def discard_scan(mirror: Path, object_id: str) -> None:
    """What an interrupted scan has left is older than what the mirror holds now."""
    _remove(_place(mirror, object_id))


def scan_into(staging: Staging, lister: CountedReads, object_id: str, begin: ScanBegin, progress: Progress) -> CompleteScan:
    """Every record that exists from the beginning to the end, as it was at some moment in between. Raises what a sweep raises."""
    noted = staging.noted("scan")
    if noted is not None:
        begin = ScanBegin(*noted["begin"])
        state, statistics = SweepState.from_document(noted["sweep"]), PassStatistics(**noted["statistics"])
    else:
        state, statistics = SweepState(Position()), PassStatistics()
    sweep = Sweep(lister, Listing(object_id), statistics, state)
    for page in sweep.pages():
        with staging.step():
            new = staging.merge(page)
            document = {
                "begin": [begin.started, begin.taken, begin.newest],
                "sweep": sweep.state.to_document(),
                "statistics": vars(statistics),
            }
            staging.note("scan", document)
        progress.advance(new)
    return CompleteScan(begin, statistics.unstable == 0)


def _place(mirror: Path, object_id: str) -> Path:
    return mirror.with_name(f"{mirror.name}.{object_id}.reading")


def _remove(place: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        place.with_name(place.name + suffix).unlink(missing_ok=True)
