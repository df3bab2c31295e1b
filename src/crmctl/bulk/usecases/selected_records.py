"""The records that a change of many is about: those that meet conditions, or those of given ids, read once and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.read.full_scan import ScanStatistics, scan
from crmctl.bulk.read.known_records import KnownRecords
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import PAGE_STEP, Cost, fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import Listing
from crmctl.bulk.run.job_start import temporary_input
from crmctl.bulk.send.deletion import read_ids
from crmctl.bulk.sources.given_input import STDIN, is_stream
from crmctl.bulk.usecases.targets import store_of
from crmctl.client.queries.strays import stray_finder
from crmctl.client.record_lists import known_attributes
from crmctl.client.shapes import Page
from crmctl.errors import RejectedError, UsageError
from crmctl.models.filters import Condition, format_condition
from crmctl.models.ids import is_uuid
from crmctl.models.records import PAGE_LIMIT, Record


@dataclass
class _PricedReader(Reader):
    """Tells what is left of a list as soon as its first page says how long it is: the pages, and a look from its other end."""

    tell: Callable[[Cost], None] | None = None

    def list_records(self, object_id: str, **asked: Any) -> Page[Record]:
        page = super().list_records(object_id, **asked)
        tell, self.tell = self.tell, None
        left = (page.total or 0) - len(page.items)
        if tell is not None and left > 0 and page.items:
            tell(Cost(-(-left // PAGE_STEP) + (len(page.items) >= PAGE_LIMIT), as_a_whole=True))
        return page


@dataclass(frozen=True)
class Selection:
    """Records whose ids a file holds (`-` is stdin), those with these `ids`, or those that meet all conditions. `verb`: what becomes of
    them."""

    ids_file: str | None = None
    conditions: Sequence[Condition] = ()
    ids: Iterable[str] | None = None
    verb: str = "update"
    admits: Callable[[Record], bool] | None = None
    """What decides which of the records that meet the conditions are meant, where the service alone cannot."""
    price: Callable[[int], None] = lambda _: None
    """Hears how many requests reading them takes, before it does, and raises CrmctlError to leave it."""

    @property
    def is_filter(self) -> bool:
        return bool(self.conditions) or self.admits is not None

    @property
    def name(self) -> str:
        """Where the records come from, as lists of jobs have it."""
        if self.ids_file is not None:
            return self.ids_file
        if not self.is_filter:
            return "ids"
        return " ".join([*(f"--filter '{format_condition(one)}'" for one in self.conditions), *(["--filter ..."] if self.admits else [])])

    def check(self) -> None:
        """Raises UsageError when it is not clear which records are meant, or the file of their ids cannot be read."""
        if sum((self.ids_file is not None, self.ids is not None, self.is_filter)) != 1:
            raise UsageError("say which records: either --ids or --filter", hint=f"crmctl bulk {self.verb} --help")
        if self.ids_file is not None:
            is_stream(self.ids_file)

    def read_ids(self, context: BulkContext, ids: SeenIds) -> None:
        """Fill `ids` with what is given by id. Raises RejectedError for what is no id, UsageError for a file without any."""
        if self.ids is not None:
            for one in self.ids:
                if not is_uuid(one):
                    raise RejectedError(f"{one!r} is not a record id; nothing was {self.verb}d", code="malformed_id")
                ids.add(one.lower())
        elif self.ids_file is not None:
            name = "stdin" if self.ids_file == STDIN else self.ids_file
            with temporary_input(store_of(context), self.ids_file, context.stdin) as given:
                read_ids(given.path, name, ids)
            if not len(ids):
                context.listener.note(f"{name} holds no ids: nothing to {self.verb}")

    def read(self, context: BulkContext, object_id: str, known: KnownRecords) -> int:
        """Fill `known`; how many requests that took. Raises what reading raises, and as `read_ids` does."""
        reader = _PricedReader(context.service, object_id, tell=self._tell if self.is_filter else None)
        with SeenIds() as ids:
            if self.is_filter:
                pages = scan(reader, Listing(object_id, self.conditions), ids, ScanStatistics())
            else:
                self.read_ids(context, ids)
                for chunk in ids.chunks(500):
                    known.want(chunk)
                pages = fetch(reader, ids, self._tell)
            progress, heeded = context.listener.progress, self._heeded(context, object_id)
            progress.start("collecting", None if self.is_filter else len(ids))
            try:
                for page in pages:
                    known.add(filter(self.admits, heeded(page)) if self.admits is not None else heeded(page))
                    progress.advance(len(page))
            finally:
                progress.finish()
        return reader.requests

    def _heeded(self, context: BulkContext, object_id: str) -> Callable[[Iterable[Record]], Iterable[Record]]:
        """Leaves out what clearly does not meet the conditions, which is said once: a service may not heed a filter that it is sent."""
        if not self.conditions:
            return lambda records: records
        find = stray_finder(known_attributes(context.directory, object_id, context.listener.note) or (), self.conditions)
        told: list[str] = []

        def heeded(records: Iterable[Record]) -> Iterator[Record]:
            for record in records:
                if (stray := find(record)) is None:
                    yield record
                elif not told:
                    told.append(stray)
                    context.listener.note(f"{stray}: such records are left alone")

        return heeded

    def _tell(self, cost: Cost) -> None:
        self.price(cost.requests)
