"""`crmctl help matching`: how `--match` and `--keep` are written, and the tables by which values are compared."""

from __future__ import annotations

from crmctl.bulk.usecases.matching_tables import (
    BY_TYPE,
    BY_WORD,
    FORMS,
    GLUED_FORMS,
    LEGAL_FORMS,
    MEASURES,
    STREET_WORDS,
    SURVIVOR_RULES,
    TITLES,
    VALUE_RULES,
)
from crmctl.cli.help_text import HelpPage, Section


def matching_page() -> HelpPage:
    """The page; its tables are those that are used."""
    return HelpPage(
        usage="crmctl bulk dedupe OBJECT --match EXPR [--match EXPR ...] [--keep RULE ...]",
        description="Records are one when a rule holds: all terms of one --match. Empty values are never alike.",
        sections=[
            Section(
                "A term",
                [
                    ("email", "equal, in the normal form of the attribute"),
                    ("name~0.92", "alike by 0.92 (from 0.5 to 0.99)"),
                    ("website:domain", "in another normal form"),
                    ("first+last:name~0.9", "several attributes as one text"),
                    ("address.city", "a part of a value"),
                ],
            ),
            Section("Normal forms", [(form.name, f"{form.about}{_used_for(form.name)}") for form in FORMS.values()]),
            Section("How alike (~)", [(_forms_measured(name), about) for name, about in MEASURES.items()]),
            Section("Who stays (--keep)", list(SURVIVOR_RULES.items())),
            Section("Whose value (--keep ATTR=)", list(VALUE_RULES.items())),
            Section(
                "Words that are left out or read as one",
                [
                    ("titles", " ".join(sorted(TITLES))),
                    ("legal forms", " ".join((*sorted(LEGAL_FORMS), *GLUED_FORMS))),
                    ("streets", " ".join(f"{word}={read}" for word, read in sorted(STREET_WORDS.items()))),
                ],
            ),
        ],
        examples=[
            "crmctl bulk dedupe people --match email --plan duplicates.jsonl",
            "crmctl bulk dedupe people --match 'name~0.92,company' --keep most-complete --keep phone=newest --review",
        ],
    )


def _used_for(form: str) -> str:
    types = [kind for kind, name in BY_TYPE.items() if name == form and kind != "text"]
    words = [word for word, name in BY_WORD.items() if name == form]
    said = [f"type {', '.join(types)}"] if types else []
    said += [f"text with {', '.join(words)} in its slug"] if words else []
    return f" ({'; '.join(said)})" if said else ""


def _forms_measured(measure: str) -> str:
    return ", ".join(form.name for form in FORMS.values() if form.measure == measure)
