"""Help for `--match` and `--keep`: their forms and the tables that compare values."""

from __future__ import annotations

from crmctl.cli.help_text import HelpPage, Section
from crmctl.dedupe.merge_plan import SURVIVOR_RULES, VALUE_RULES
from crmctl.dedupe.rules import (
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
    TITLES,
)


def matching_page() -> HelpPage:
    """Return the page of `crmctl help matching`: how to write --match and --keep."""
    return HelpPage(
        usage="crmctl bulk dedupe OBJECT --match EXPR [--match EXPR ...] [--keep RULE ...]",
        description="Records match when all terms of one --match hold. Empty values never match.",
        sections=[
            Section(
                "Terms",
                [
                    ("email", "equal in the attribute's normal form"),
                    ("name~0.92", "similarity of at least 0.92 (from 0.5 to 0.99)"),
                    ("website:domain", "equal in another normal form; address.city: a part of a value"),
                    ("first+last:name~0.9", "several attributes as one text"),
                    ("born~0.6?", "must hold only if both records have a value"),
                ],
            ),
            Section("Normal forms", [(form.name, form.about) for form in FORMS.values()]),
            Section("Measures of similarity (~)", [(_forms_measured(name), about) for name, about in MEASURES.items()]),
            Section("Which record survives (--keep)", list(SURVIVOR_RULES.items())),
            Section("Which value it gets (--keep ATTR=)", list(VALUE_RULES.items())),
        ],
        examples=[
            "crmctl bulk dedupe people --match 'name~0.9,phone,born?' --keep phone=newest --review",
        ],
        footer="crmctl help matching-words: default forms, ignored words",
    )


def words_page() -> HelpPage:
    """Return the page of `crmctl help matching-words`: the tables behind the normal forms."""
    return HelpPage(
        usage="crmctl help matching-words",
        sections=[
            Section("Default form of an attribute", [(form, text) for form in FORMS if (text := _used_for(form))]),
            Section(
                "Words ignored or read as others",
                [
                    ("titles", " ".join(sorted(TITLES))),
                    ("legal forms", " ".join((*sorted(LEGAL_FORMS), *GLUED_FORMS))),
                    ("streets", " ".join(f"{word}={read}" for word, read in sorted(STREET_WORDS.items()))),
                ],
            ),
            Section(
                "Values ignored except in the form exact",
                [
                    ("words", f"{', '.join(sorted(NO_VALUES))}; 000, 999999"),
                    ("but names", ", ".join(sorted(ALSO_NAMES))),
                    ("dates", " ".join(f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in sorted(NO_DATES))),
                    ("mailboxes", f"{' '.join(sorted(ROLE_MAILBOXES))}; test@test.com"),
                ],
            ),
        ],
    )


def _used_for(form: str) -> str:
    types = [kind for kind, name in BY_TYPE.items() if name == form and kind != "text"]
    words = [word for word, name in BY_WORD.items() if name == form]
    uses = [f"type {', '.join(types)}"] if types else []
    uses += [f"text with {', '.join(words)} in its slug"] if words else []
    return "; ".join(uses)


def _forms_measured(measure: str) -> str:
    forms = [form.name for form in FORMS.values() if form.measure == measure]
    return ", ".join(forms) if len(forms) < 4 else "other forms"
