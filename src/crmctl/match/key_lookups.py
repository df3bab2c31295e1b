"""Find the records of many keys with few requests."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any, Unpack

from crmctl.client.answers import ListQuery, Page, may_count_page
from crmctl.client.directory import Lister
from crmctl.errors import InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.frozen import frozen
from crmctl.match.keys import AtHand, KeyIndex, KeyRule
from crmctl.models import jsontext
from crmctl.models.resources import PAGE_LIMIT, SMALLEST_PAGE, Attribute, AttributeType, Record
from crmctl.read.read_back import LONG_READ
from crmctl.read.records import PAGE_STEP, scan
from crmctl.read.stable_pages import AnchoredPass, Listing, PassStatistics, Unsorted
from crmctl.values.attribute_types import Trait, types_with
from crmctl.values.equality import key_form
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, micros_of
from crmctl.values.operators import Operator

SHORTEST = 3
"""Shortest piece of text for a filter. Too many values contain shorter ones."""

_PRINTABLE = re.compile(r"[ -~]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CONTAINED = types_with(Trait.SOUGHT_BY_PIECE) - {AttributeType.PHONE_NUMBER}

Conditions = tuple[Condition, ...]


@frozen
class KeyFilter:
    """Conditions that find the records of a key.

    `sample` is an existing record. Filters use only characters proven to work by finding the sample. Telephone numbers have no filter
    because their notations have no common piece.
    """

    rule: KeyRule
    sample: Record

    @classmethod
    def of(cls, rule: KeyRule, records: Iterable[Record]) -> KeyFilter | None:
        """Return a filter whose sample is the youngest record with a key; None if no record has one."""
        having = [cls(rule, record) for record in records if rule.key(record.data) is not None]
        usable = [key_filter for key_filter in having if key_filter.control]
        return max(usable, key=lambda key_filter: micros_of(key_filter.sample.created_at) or 0, default=None)

    def conditions(self, key: str) -> Conditions:
        """Return conditions that all records of a key meet, and maybe others. Empty if no filter can express the key."""
        parts = zip(self.rule.attributes, jsontext.loads(key), strict=True)
        return _all_conditions((attribute, self._asked(attribute, part)) for attribute, part in parts)

    @cached_property
    def control(self) -> Conditions:
        """Conditions that find the sample, spelled differently than its own values."""
        data = self.sample.data
        return _all_conditions((attribute, _respelled(attribute.type, data.get(attribute.slug))) for attribute in self.rule.attributes)

    def fits(self, conditions: Conditions, data: Mapping[str, Any]) -> bool:
        """Whether a service that obeys the conditions may return a record with this data."""
        kinds = {attribute.slug: attribute.type for attribute in self.rule.attributes}
        return all(
            _folded(condition.value) in _folded(_text(data.get(condition.slug)))
            if kinds[condition.slug] in _CONTAINED
            else _equals(kinds[condition.slug], data.get(condition.slug), condition.value)
            for condition in conditions
        )

    def _asked(self, attribute: Attribute, part: str) -> str | None:
        proven = next((frozenset(condition.value) for condition in self.control if condition.slug == attribute.slug), frozenset())
        if attribute.type in _CONTAINED:
            return _longest("".join(letter if _is_plain(letter) or letter in proven else "\0" for letter in part).split("\0"))
        if attribute.type == AttributeType.DATE and not _DATE.fullmatch(part):
            return None
        return part if all(_is_plain(letter) or letter in proven for letter in part) else None


def _all_conditions(asked: Iterable[tuple[Attribute, str | None]]) -> Conditions:
    conditions = []
    for attribute, text in asked:
        if not text or attribute.type == AttributeType.PHONE_NUMBER:
            return ()
        operator = Operator.CONTAINS if attribute.type in _CONTAINED else Operator.EQUALS
        conditions.append(Condition(attribute.slug, operator, text))
    return tuple(conditions)


def _respelled(kind: str | None, value: Any) -> str | None:
    """Return another spelling of a value that the service must understand; None if there is none."""
    form = key_form(kind, value)
    if form is None or (kind in _CONTAINED and not isinstance(value, str)):
        return None
    match kind:
        case AttributeType.EMAIL:
            return _in_other_case(_longest(_PRINTABLE.findall(value.strip())))
        case AttributeType.TEXT:
            return _longest(_PRINTABLE.findall(value.strip()))
        case AttributeType.NUMBER:
            return form + ("0" if "." in form else ".0")
        case AttributeType.DATE:
            return f"{form}T00:00:00Z" if _DATE.fullmatch(form) else None
        case AttributeType.REFERENCE:
            return _in_other_case(form)
    return form


def _equals(kind: str | None, value: Any, asked: str) -> bool:
    stored_form, form = key_form(kind, value), key_form(kind, asked)
    if kind == AttributeType.NUMBER and stored_form is not None and form is not None:
        return stored_form in (form, form.removesuffix("0").removesuffix("."))
    if kind == AttributeType.DATE and form is not None:
        form = key_form(kind, form.upper())
    return stored_form == form


def _in_other_case(text: str | None) -> str | None:
    """Return a text with its case swapped; None if it has no case and so proves nothing."""
    return other if text is not None and (other := text.swapcase()) != text else None


def _is_plain(letter: str) -> bool:
    return letter.isascii() and letter.isalnum()


def _longest(pieces: Iterable[str]) -> str | None:
    longest = max((piece.strip() for piece in pieces), key=len, default="")
    return longest if len(longest) >= SHORTEST else None


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return " ".join(_text(item) for item in (value.values() if isinstance(value, dict) else value))
    return "" if value is None else str(value)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


AT_ONCE = 5
"""Number of requests that take so little time that all answers count as of the first."""

FEW = 10
"""Number of requests that crmctl does not announce."""

MARGIN = 5 * MICROS
"""Longest delay in microseconds between the time of a change and its visibility."""


RecordSink = Callable[[Iterable[Record]], None]
"""Receives records in their present state."""


@dataclass
class Lookup:
    """Looks up records of one object and counts the requests.

    `as_of`: all changes before this moment (microseconds of the service) were seen. `stop` tells when to give up. `newest`: the page of the
    newest changes, if the caller has just read it. `at_hand` returns the mirror's records with the values of `slugs`. `now` is a monotonic
    clock. `head`: the newest changes at the last look for them. `tell` announces reads that need many requests.
    """

    lister: Lister
    object_id: str
    stop: Callable[[], bool] = lambda: False
    advance: Callable[[int], None] = lambda _: None
    tell: Callable[[str], None] = lambda _: None
    newest: Page[Record] | None = None
    at_hand: AtHand | None = None
    slugs: Collection[str] | None = None
    requests: int = 0
    as_of: int = 0
    now: Callable[[], float] = monotonic
    head: Page[Record] | None = None
    _certain: int = 0
    _known: tuple[int, float] = (0, 0.0)

    def fill(self, index: KeyIndex) -> None:
        """Give the index the current record of every key it wants. Raises the errors of reading, and InterruptedByUser."""
        count = index.key_count
        if not count:
            return
        stock = self.at_hand(self.object_id, self.slugs) if self.at_hand is not None else None
        if stock is not None:
            for records in stock.pages:
                index.see(records)
            self.as_of = stock.as_of
            self.refresh(index.see)
            return
        begun, newest = self.requests, self.begin()
        index.see(newest.items)
        size = len(newest.items)
        if (newest.total == size and not may_count_page(newest)) or (newest.total is None and size < SMALLEST_PAGE):
            return
        singly = self._asks_singly(count, newest)
        self.price(f"looking up {count:,} keys", 2 * count + 3 if singly else None, newest)
        if singly and self._ask(index, newest):
            if self.requests - begun <= AT_ONCE:
                return
        else:
            if singly:
                self.price("filters cannot find these keys: reading all records", None, newest)
            for records in scan(self, Listing(self.object_id)):
                index.see(records)
        self.refresh(index.see)

    def refresh(self, see: RecordSink) -> bool:
        """Pass the records changed since `as_of` to `see`. Return False if the service cannot list changes.

        Changes older than the margin at an earlier look were seen then and are not read again.
        """
        begun, known_as_of = self.now(), self.as_of
        if known_as_of != self._known[0]:
            self._known = known_as_of, begun
        since = max(known_as_of - MARGIN, self._certain)
        for field in ("updated_at", "created_at"):
            listing = Listing(self.object_id, field=field, descending=True, until=since)
            try:
                for number, records in enumerate(AnchoredPass(self, listing, PassStatistics()).pages(), 1):
                    see(records)
                    if number == LONG_READ:
                        self.tell(f"reading more than {LONG_READ} pages of records that changed lately")
                    moments = (micros_of(record.updated_at) or 0 for record in records)
                    self.as_of = max(self.as_of, *moments, 0)
                if (begun - self._known[1]) * MICROS > MARGIN:
                    self._certain = known_as_of
                return True
            except Unsorted:
                continue
        return False

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        if self.stop():
            raise InterruptedByUser("interrupted")
        self.requests += 1
        page = self.lister.list_records(object_id, **query)
        if (query.get("sort"), query.get("offset", 0), query.get("limit")) == ("updated_at", 0, PAGE_LIMIT):
            self.head = page
        self.advance(len(page.items))
        return page

    def begin(self) -> Page[Record]:
        """Return the records changed last. `refresh` starts from their time."""
        newest = self.newest
        if newest is None:
            newest = self.list_records(self.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
        else:
            self.head = newest
            self.requests += 1  # its reader did not count it
        self.as_of = max((micros_of(record.updated_at) or 0 for record in newest.items), default=0)
        return newest

    def _asks_singly(self, count: int, newest: Page[Record]) -> bool:
        """Whether one request per key, plus one control, is cheaper than reading all pages."""
        if newest.total is not None:
            return count + 1 < self._pages(newest.total)
        probe = self.list_records(self.object_id, sort="updated_at", order="desc", limit=1, offset=PAGE_STEP * (count + 1))
        return bool(probe.items)

    def price(self, purpose: str, most: int | None, newest: Page[Record]) -> None:
        """Announce the number of requests, at most `most`, if they are many."""
        pages = self._pages(newest.total) + 3 if newest.total is not None else None  # with changes made meanwhile
        requests = min((count for count in (most, pages) if count is not None), default=0)
        if requests > FEW:
            among = f" among {newest.total:,} records" if newest.total is not None else ""
            self.tell(f"{purpose}{among}: {requests:,} requests{' at most' if most is not None else ''}")

    @staticmethod
    def _pages(total: int) -> int:
        """Return the requests needed to read this many records, including the check from the other end and the look for changes."""
        return -(-total // PAGE_STEP) + 2

    def _ask(self, index: KeyIndex, newest: Page[Record]) -> bool:
        """Query every key with a filter. Return False if an answer may be incomplete, or if that costs as much as reading everything."""
        asker = KeyFilter.of(index.rule, newest.items)
        if asker is None:
            return False
        most = self.requests + (self._pages(newest.total) if newest.total is not None else index.key_count + 1)
        is_proven = False
        for key in index.distinct():
            page = self._answer(asker, asker.conditions(key))
            if page is None or self.requests >= most or not is_whole(page):
                return False
            index.see(page.items)
            if not is_proven and all(index.rule.key(record.data) != key for record in page.items):
                # An empty answer proves absence only if a query of the same kind finds the sample.
                control = self._answer(asker, asker.control)
                is_proven = control is not None and any(record.id == asker.sample.id for record in control.items)
                if not is_proven:
                    return False
        return True

    def _answer(self, asker: KeyFilter, conditions: Conditions) -> Page[Record] | None:
        """Return the first page of an answer; None if no filter is possible, or the service ignores the conditions."""
        return ask(self, self.object_id, conditions, lambda record: asker.fits(conditions, record.data)) if conditions else None


def ask(lister: Lister, object_id: str, conditions: Conditions, fits: Callable[[Record], bool]) -> Page[Record] | None:
    """Return the first records that meet conditions, oldest first; None if the service refuses the conditions or ignores them.

    The sample of a control is young, so a service that cuts pages before it filters does not find it.
    """
    try:
        page = lister.list_records(object_id, filters=conditions, sort="created_at", order="asc", limit=PAGE_LIMIT)
    except (RejectedError, NotFoundError, ServiceError):
        return None
    return page if all(map(fits, page.items)) else None


def is_whole(page: Page[Record]) -> bool:
    """Whether a page certainly holds all records that meet its conditions."""
    return len(page.items) < SMALLEST_PAGE or (page.total == len(page.items) and not may_count_page(page))
