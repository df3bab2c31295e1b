"""`startsWith` at the ends of a range: the characters after a prefix's last one, the last code point, the gap of the surrogates."""

from __future__ import annotations

import pytest

from crmctl.service.store import records
from tests.service.store.conftest import Store
from tests.service.store.test_filters import fold

LAST = "\U0010ffff"
EDGES = [*"!9az~äß", "\x7f", "\u07ff", "\u0800", "\ud7fe", "\ud7ff", "\ue000", "\ufffe", "\uffff", "\U00010000", "\U0010fffe", LAST]
PREFIXES = [*EDGES, *(f"x{edge}" for edge in EDGES), f"x{LAST}{LAST}", f"\ud7ff{LAST}", f"z{LAST}", "straß", "STRASS", "ÄA\u0308"]


def neighbours(prefix: str) -> list[str]:
    """Return texts that begin with the prefix, and texts just before and after them."""
    before, last = prefix[:-1], ord(prefix[-1])
    near = [before + chr(code) for code in range(last - 2, last + 4) if 0x20 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF]
    starts = [*near, before + "\ud7ff", before + "\ue000", before + "\U00010000", prefix.upper()]
    return [before, LAST * 3, *(start + tail for start in starts for tail in ("", LAST))]


@pytest.mark.parametrize(("type", "end"), [("text", ""), ("email", "@example.com")])
def test_a_prefix_finds_exactly_the_texts_that_begin_with_it(store: Store, type: str, end: str) -> None:
    """Email addresses have an index with a range query; other texts have none."""
    things = store.object("things", {"slug": "word", "type": type}, {"slug": "words", "type": type, "is_list": True})
    written = dict.fromkeys(text for prefix in PREFIXES for text in neighbours(prefix))
    texts = [text + end for text in written if text and not any(letter.isspace() or letter == "@" for letter in text)]
    rows = [{"data": {"word": text, "words": [f"-{end}", text]}} for text in texts]
    for start in range(0, len(rows), 100):
        assert store.write(records.bulk_write, things, "create", rows[start : start + 100])["failed"] == []
    for prefix in PREFIXES:
        wanted = [text for text in texts if fold(text).startswith(fold(prefix))]
        assert wanted, prefix
        for slug in ("word", "words"):
            assert [record["data"]["word"] for record in store.find(things, (slug, "startsWith", prefix))] == wanted, (slug, prefix)
