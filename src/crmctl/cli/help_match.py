"""`crmctl help matching`: how `--match` and `--keep` are written, and the tables by which values are compared."""

from __future__ import annotations

from crmctl.bulk.usecases.matching_tables import (
    ALSO_NAMES,
    BY_TYPE,
    BY_WORD,
    FORMS,
    GLUED_FORMS,
    LEGAL_FORMS,
    MEASURES,
    NO_DATES,
    NO_VALUES,
    ROLE_MAILBOXES,
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
                    ("born~0.6?", "with ?: only where both have a value does it have to hold"),
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
            Section(
                "What is no sign that two are one (but in the form exact)",
                [
                    ("words", f"{', '.join(sorted(NO_VALUES))}; 000, 999999"),
                    ("but names", ", ".join(sorted(ALSO_NAMES))),
                    ("dates", " ".join(f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in sorted(NO_DATES))),
                    ("mailboxes", f"{' '.join(sorted(ROLE_MAILBOXES))}; test@test.com"),
                ],
            ),
        ],
        examples=[
            "crmctl bulk dedupe people --match email --plan duplicates.jsonl",
            "crmctl bulk dedupe people --match 'name~0.9,phone,born?' --plan duplicates.jsonl",
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
