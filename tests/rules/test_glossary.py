"""One word for one thing: class names are unique, modules are named after their content, and the glossary's terms are in use."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.support.sources import PACKAGE, ROOT, package_files

NOUNS = {"mapping", "paging", "routing"}
"""Words in -ing that name a thing."""


def terms() -> dict[str, str]:
    """Return the glossary: term to meaning."""
    rows = re.findall(r"^\| (?!term )([^|]+?) \| ([^|]+?) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return {name.strip(): meaning for term, meaning in rows for name in term.split(",")}


def test_no_module_is_named_by_a_gerund() -> None:
    named = [path.relative_to(PACKAGE).as_posix() for path in package_files() if path.stem.endswith("ing") and path.stem not in NOUNS]
    assert named == []


def test_no_class_name_means_two_things() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in package_files():
        for name in re.findall(r"^class ([^_]\w*)", path.read_text(), re.MULTILINE):
            homes[name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_the_glossary_defines_each_term_once() -> None:
    assert len(terms()) >= 60
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (?!term )([^|\-]+?) \|", text, re.MULTILINE)
    assert len(rows) == len(set(rows))


def test_every_term_is_used_in_the_program_or_its_documents() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    text = "\n".join(path.read_text() for path in (*package_files(), *pages)).casefold()
    text = re.sub(r"[\s_-]+", " ", text)
    unused = [term for term in terms() if re.sub(r"[\s_-]+", " ", term.casefold()) not in text]
    assert unused == []


def test_help_avoids_the_words_that_wording_forbids() -> None:
    """`docs/wording.md` lists words to avoid."""
    from crmctl.cli.app import describe_tree, walk_commands

    never = re.compile(r"\b(backend|oops|please|sorry)\b|\bunable to\b", re.IGNORECASE)
    texts = [leaf["help"] for leaf in walk_commands(describe_tree())]
    assert texts
    assert [text for text in texts if never.search(text)] == []
