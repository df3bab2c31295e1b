"""Rows that name parts of values (`address.city`, an amount without its currency): what their records hold now makes the values whole.

Whole values are kept with the job, so that what is sent again is what was sent; of a row that is not sent yet they are made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.findings import Finding
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import AwaitedRecords
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.before_images import Later, before_image, nothing_later
from crmctl.bulk.send.context import SendContext
from crmctl.bulk.send.update_replay_check import MERGED
from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.composites import Merger
from crmctl.models.records import Record

FILE_NAME = "merged.sqlite"

Target = Callable[[Payload], str | None]
"""The id of the record that a row updates."""


class MergedRows:
    """The whole values of rows that name parts of them. In the job's folder, or, without one, gone when closed."""

    def __init__(self, folder: Path | None = None) -> None:
        path = folder / FILE_NAME if folder is not None else None
        if path is not None:
            path.touch(mode=0o600)
        with ExitStack() as unless_ready:
            self._db = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None)))
            self._db.execute("CREATE TABLE IF NOT EXISTS merged (ordinal INTEGER PRIMARY KEY, data TEXT NOT NULL)")
            unless_ready.pop_all()
        self.is_current = False
        """Whether the records were read in this run of the job."""

    def close(self) -> None:
        self._db.close()

    def restart(self) -> None:
        """Forget everything: the input is checked anew."""
        self._db.execute("DELETE FROM merged")
        self.is_current = True

    def keep(self, rows: Iterable[tuple[int, dict[str, Any] | None]], journal: Journal) -> None:
        """Keep the whole values of rows, by slug; None for a row whose parts make a new value. On disk when it returns."""
        if not journal.recall(MERGED):
            journal.remember(MERGED, True)
        self._db.execute("BEGIN")
        for ordinal, values in rows:
            if values is None:
                self._db.execute("DELETE FROM merged WHERE ordinal = ?", (ordinal,))
            else:
                self._db.execute("INSERT OR REPLACE INTO merged VALUES (?, ?)", (ordinal, jsontext.dumps(values)))
        self._db.execute("COMMIT")

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """The rows with whole values in place of parts."""
        for payload in payloads:
            values = self._values(payload.ordinal) if payload.parts else None
            yield payload if values is None else payload._replace(data=payload.data | values)

    def _values(self, ordinal: int) -> dict[str, Any] | None:
        found = self._db.execute("SELECT data FROM merged WHERE ordinal = ?", (ordinal,)).fetchone()
        return None if found is None else jsontext.loads(found[0])


@dataclass(frozen=True)
class MergeRun:
    """Makes the values of rows whole by what their records hold now. `later`: the attributes that a row gets only after it was written."""

    context: SendContext
    reader: Reader
    merger: Merger
    merged: MergedRows
    report: Callable[[Finding], None]
    later: Later = nothing_later

    def merge(self, rows: Iterable[Payload], target: Target, *, keeps_all: bool = False) -> bool:
        """Read the records of rows that name parts (with `keeps_all` of all rows, to keep what they overwrite), and keep their whole
        values; whether a row was rejected because its parts do not fit what is there. Can be repeated; raises what reading raises.

        Of a record that is not there nothing is kept: its row will be refused.
        """
        with AwaitedRecords() as awaited:
            for row in rows:
                record_id = target(row)
                if record_id is not None and (row.parts or keeps_all):
                    awaited.add(record_id, (row.ordinal, row.first_line, row.last_line, row.data, dict(row.parts)))
            if not len(awaited):
                return False
            self.context.progress.start("reading", len(awaited))
            try:
                return self._read(awaited)
            finally:
                self.context.progress.finish()

    def _read(self, awaited: AwaitedRecords) -> bool:
        rejected = False
        for page in awaited.pages(self.reader):
            whole: list[tuple[int, dict[str, Any] | None]] = []
            images: list[tuple[int, dict[str, Any]]] = []
            for facts, record in page:
                try:
                    values = self.merger.merge_all(facts[-1], record.data)
                except RejectedError as error:
                    self._reject(facts, error)
                    rejected = True
                    continue
                whole += [(facts[0], values)] if values else []
                images.append(self._image(facts, values, record))
            self.merged.keep(whole, self.context.journal)
            if self.context.journal.header.before_images != "no":
                self.context.journal.keep_before(images)
            self.context.progress.advance(len(page))
        return rejected

    def _image(self, facts: Sequence[Any], values: dict[str, Any], record: Record) -> tuple[int, dict[str, Any]]:
        ordinal, data = facts[0], facts[3]
        return ordinal, before_image(data | values, record.data, self.later(ordinal))

    def _reject(self, facts: Sequence[Any], error: RejectedError) -> None:
        finding = finding_of_merge(error).at(*facts[:3])
        self.report(finding)
        self.context.journal.conclude([(facts[0], RowState.REJECTED, None, finding.message)])


def finding_of_merge(error: RejectedError) -> Finding:
    """Why the parts of a row do not fit what is there."""
    slug, _, _ = error.message.partition(" ")
    return Finding(error.code, error.message, hint=error.hint).on(slug.rstrip(":"), "")
