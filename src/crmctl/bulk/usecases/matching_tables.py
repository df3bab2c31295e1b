"""The tables by which records are matched and merged, for whoever shows them."""

from __future__ import annotations

from crmctl.bulk.dedupe.normal_forms import (
    ALSO_NAMES,
    BY_TYPE,
    BY_WORD,
    FORMS,
    GLUED_FORMS,
    LEGAL_FORMS,
    NO_DATES,
    NO_VALUES,
    ROLE_MAILBOXES,
    STREET_WORDS,
    TITLES,
)
from crmctl.bulk.dedupe.similarity import MEASURES
from crmctl.bulk.dedupe.survivorship import SURVIVOR_RULES, VALUE_RULES

__all__ = [
    "ALSO_NAMES",
    "BY_TYPE",
    "BY_WORD",
    "FORMS",
    "GLUED_FORMS",
    "LEGAL_FORMS",
    "MEASURES",
    "NO_DATES",
    "NO_VALUES",
    "ROLE_MAILBOXES",
    "STREET_WORDS",
    "SURVIVOR_RULES",
    "TITLES",
    "VALUE_RULES",
]
