"""Options that may differ from column to column: `VALUE` for every column, `COLUMN=VALUE` for one. Text to mappings, nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crmctl.errors import RejectedError, UsageError
from crmctl.models.typed_text import date_directives

BLANK_POLICIES = {"skip": "skip", "clear": "clear"}
DECIMAL_MARKS = {",": "comma", "comma": "comma", ".": "point", "point": "point"}


def parse_blanks(texts: Iterable[str]) -> dict[str, str]:
    """What blank cells mean, by column ("" for the others). Raises UsageError for anything but skip and clear."""
    return _by_column("--blank", texts, _one_of("--blank", BLANK_POLICIES, "skip or clear"))


def parse_decimal_marks(texts: Iterable[str], *, comma: bool = False) -> dict[str, str]:
    """The marks "comma" and "point", by column; `comma` is what columns have that are not named. Raises UsageError for any other mark."""
    texts = list(texts)
    return _by_column("--decimal-mark", [*([","] if comma else []), *texts], _one_of("--decimal-mark", DECIMAL_MARKS, "comma or point"))


def parse_date_formats(texts: Iterable[str]) -> dict[str, str]:
    """strptime directives by column, of formats such as `%d/%m/%Y` and `DD/MM/YYYY`. Raises UsageError for an incomplete one."""

    def directives(format: str) -> str:
        try:
            return date_directives(format)
        except RejectedError as error:
            raise UsageError(error.message, hint="--date-format %d/%m/%Y, or --date-format 'Birthday=%d/%m/%Y'", code=error.code) from None

    return _by_column("--date-format", texts, directives)


def _one_of(option: str, choices: dict[str, str], words: str) -> Callable[[str], str]:
    example = next(iter(choices.values()))

    def choose(value: str) -> str:
        if value not in choices:
            raise UsageError(
                f"{option} takes {words}, not {value!r}", hint=f"{option} {example}, or for one column: {option} COLUMN={example}"
            )
        return choices[value]

    return choose


def _by_column(option: str, texts: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    said: dict[str, str] = {}
    for text in texts:
        column, _, value = text.rpartition("=")
        known = read(value)
        if said.get(column, known) != known:
            raise UsageError(f"{option} says two things of {f'the column {column!r}' if column else 'all columns'}")
        said[column] = known
    return said
