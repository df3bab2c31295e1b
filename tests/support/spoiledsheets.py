"""Faults of tables as functions on a sheet: oddities that must not matter, and damage that must be reported."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from tests.support.sheets import NULL, SLUGS, TOKEN, Sheet, clean_sheet


def spoiled_sheet(seed: int) -> Sheet:
    """Return a sheet with harmless oddities and, in two of three cases, one kind of damage."""
    chance = random.Random(seed)
    sheet = clean_sheet(chance)
    oddities = chance.sample(ODDITIES, chance.randint(0, 5))
    for mutate in [*oddities, *chance.sample(DAMAGES, chance.choice([0, 1, 1]))]:
        if mutate(sheet) is not False:
            sheet.done.append(mutate.__name__)
    return sheet


# Oddities: all data must be imported unchanged.


def another_delimiter(sheet: Sheet) -> None:
    sheet.delimiter = sheet.chance.choice(";\t|")
    if sheet.chance.random() < 0.3:
        sheet.source["delimiter"] = sheet.delimiter
    elif sheet.chance.random() < 0.3 and not sheet.preamble:
        sheet.preamble = f"sep={sheet.delimiter}\n"


def more_quotes(sheet: Sheet) -> None:
    sheet.quoting = sheet.chance.choice(["all", "some"])


def other_line_ends(sheet: Sheet) -> None:
    sheet.newlines = sheet.chance.choice([["\r\n"], ["\r"], ["\n", "\r\n", "\r"]])


def blank_lines(sheet: Sheet) -> None:
    sheet.blank_lines = 0.3


def no_final_line_end(sheet: Sheet) -> None:
    sheet.final_newline = False


def marked_encoding(sheet: Sheet) -> bool:
    if sheet.source.get("encoding"):
        return False
    sheet.encoding = sheet.chance.choice(["utf-8-sig", "utf-16", "utf-32"])
    return True


def declared_encoding(sheet: Sheet) -> bool:
    wanted = sheet.chance.choice(["cp1252", "utf-16-be", "utf-16-le", "utf-32-le", "gb18030"])
    return _encode(sheet, wanted) and bool(sheet.source.update(encoding=wanted) or True)


def packed(sheet: Sheet) -> None:
    sheet.compressed = True


def shuffled_columns(sheet: Sheet) -> None:
    order = sheet.chance.sample(range(len(sheet.header)), len(sheet.header))
    sheet.header = [sheet.header[place] for place in order]
    for row in sheet.rows:
        row.cells = [row.cells[place] for place in order]


def names_in_other_letters(sheet: Sheet) -> None:
    sheet.header = [name if name.startswith("_") else sheet.chance.choice([name.upper(), f" {name.title()} "]) for name in sheet.header]


def trailing_delimiter(sheet: Sheet) -> None:
    sheet.ends_in_delimiter = True


def result_columns(sheet: Sheet) -> None:
    sheet.header += ["_row", "_error"]
    for row in sheet.rows:
        row.cells += ["7", "no, never"]


def other_dates(sheet: Sheet) -> None:
    form, parts = sheet.chance.choice([("%d/%m/%Y", "{2}/{1}/{0}"), ("%m/%d/%Y", "{1}/{2}/{0}"), ("%d.%m.%Y", "{2}.{1}.{0}")])
    sheet.values["date_formats"] = {sheet.chance.choice(["", "born"]): form}
    _respell(sheet, "born", lambda text: parts.format(*text.split("-")))


def decimal_commas(sheet: Sheet) -> None:
    sheet.values["decimal_marks"] = {sheet.chance.choice(["", "score"]): "comma"}
    _respell(sheet, "score", lambda text: re.sub(r"^([0-9])([0-9]{3})$", r"\1.\2", text.replace(".", ",")))


def national_phones(sheet: Sheet) -> None:
    sheet.values["default_region"] = "GB"
    _respell(sheet, "phone", lambda text: sheet.chance.choice([f"0{text[3:5]} {text[5:9]} {text[9:]}", f"0044 {text[3:]}", text]))


def options_in_other_letters(sheet: Sheet) -> None:
    _respell(sheet, "stage", lambda text: sheet.chance.choice([text.upper(), f" {text.lower()}"]))


def blanks_and_tokens(sheet: Sheet) -> None:
    sheet.values.update(null_strings=(NULL,), clear_tokens=(TOKEN,))
    for row, token in zip(sheet.some(), [NULL, TOKEN, ""], strict=False):
        place = _place(sheet, "score")
        row.cells[place] = token
        row.data.pop("score", None)
        if token == TOKEN:
            row.data["score"] = None


def blank_remarks_clear(sheet: Sheet) -> None:
    sheet.values["blank"] = {_name(sheet, "remark"): "clear"}
    for row in sheet.rows:
        row.data.setdefault("remark", None)


def guarded_formulas(sheet: Sheet) -> None:
    sheet.source["excel_safe"] = True
    for row in sheet.rows:
        row.cells = [
            "'" + text if re.match(r"[=@+-]|'+[=@+-]", text) and not re.fullmatch(r"[+-][0-9.]+", text) else text for text in row.cells
        ]


# Damage: changed data must be reported, or the whole file refused.


def short_row(sheet: Sheet) -> None:
    for row in sheet.some():
        del row.cells[sheet.chance.randint(1, len(row.cells) - 1) :]
        row.lost = True


def long_row(sheet: Sheet) -> None:
    for row in sheet.some():
        row.cells.insert(sheet.chance.randint(0, len(row.cells)), "more")
        row.lost = True


def text_after_quote(sheet: Sheet) -> None:
    for row in sheet.some():
        place = sheet.chance.randrange(len(row.cells))
        cells = list(map(sheet._cell, row.cells))
        cells[place] = f"{sheet.quote}Ada{sheet.quote}x"
        row.text, row.lost = sheet.delimiter.join(cells), True


def unquoted_delimiter(sheet: Sheet) -> None:
    for row in sheet.some():
        row.text, row.lost = sheet._record(row.cells) + sheet.delimiter + "“so”", True


def unclosed_quote(sheet: Sheet) -> None:
    place = sheet.chance.randrange(len(sheet.rows))
    row = sheet.rows[place]
    row.text = sheet.quote + sheet._record([text.replace(sheet.quote, "") for text in row.cells]).replace(sheet.quote, "")
    row.lost = True
    sheet.refusals |= {"unclosed_quote"}


def undeclared_spelling(sheet: Sheet) -> bool:
    """Spell one cell so that only a declaration, or nothing, could explain it."""
    slug, text = sheet.chance.choice(UNREADABLE)
    declared = {"born": "date_formats", "score": "decimal_marks", "phone": "default_region"}.get(slug)
    if declared in sheet.values:
        return False
    for row in sheet.some():
        row.cells[_place(sheet, slug)] = text
        row.lost = True
    return True


UNREADABLE = [
    *[("born", text) for text in ("03/04/2024", "04.03.2024", "2024-02-30", "45000", "3 April 2024")],
    *[("score", text) for text in ("1,5", "1,234", "1.234,5", "1 234", "12€", "#N/A", "1/2", "0x1F", "١٢")],
    *[("phone", text) for text in ("1.23E+11", "020 7946 0958", "0044 20 7946 0958", "+44 20", "+44207946095812345", "none")],
    *[("stage", text) for text in ("Wno", "Won!", "Won;New", "0")],
    *[("email", text) for text in ("nope", "a@b@c.com", "a b@x.com", "a@x.com,b@x.com", "\ufeffa@x.com", "a\u200b@x.com", "'a@x.com'")],
    *[("ref", text) for text in ("",)],
]


def repeated_header(sheet: Sheet) -> None:
    mark = sheet.chance.choice(["", "\ufeff"]) if sheet.encoding.startswith("utf") else ""
    sheet.extra.append((sheet.chance.randint(1, len(sheet.rows)), mark + sheet._record(sheet.header)))


def repeated_column(sheet: Sheet) -> None:
    sheet.header[sheet.chance.randrange(1, 3)] = sheet.header[0]
    sheet.refusals |= {"duplicate_column"}


def two_names_of_one_attribute(sheet: Sheet) -> None:
    sheet.header[1] = sheet.header[0].strip().swapcase()
    sheet.refusals |= {"duplicate_target", "duplicate_column"}


def unknown_column(sheet: Sheet) -> None:
    sheet.header[sheet.chance.randrange(len(SLUGS) - 1)] = sheet.chance.choice(["nobody knows", "", "emial"])
    sheet.refusals |= {"unknown_column"}


def undeclared_encoding(sheet: Sheet) -> bool:
    if sheet.source.get("encoding") or not _encode(sheet, sheet.chance.choice(["cp1252", "utf-16-le", "gb18030"])):
        return False
    sheet.refusals |= {"undecodable"}
    return True


def nul_character(sheet: Sheet) -> None:
    sheet.spoil_text = lambda text: _insert(text, sheet.chance.randint(0, len(text)), "\0")
    sheet.refusals |= {"undecodable", "unknown_column"}


def broken_byte(sheet: Sheet) -> bool:
    if sheet.encoding not in ("utf-8", "utf-8-sig") or sheet.compressed:
        return False
    sheet.spoil_bytes = lambda data: _insert(data, sheet.chance.randint(5, len(data)), b"\xff")
    sheet.refusals |= {"undecodable"}
    return True


def cut_off(sheet: Sheet) -> bool:
    """Cut off the end: the last remaining row may be incomplete, which the note about the last line reports."""
    if sheet.compressed:
        sheet.spoil_bytes = lambda data: data[: sheet.chance.randint(len(data) // 2, len(data) - 1)]
        sheet.refusals |= {"unreadable_file"}
        return True
    start = len(sheet.bom + (sheet.preamble + sheet._record(sheet.header)).encode(sheet.encoding)) * 2
    sheet.spoil_bytes = lambda data: data[: sheet.chance.randint(min(start, len(data)), len(data))]
    sheet.refusals |= {"undecodable", "unclosed_quote", "cut off"}
    return True


def undeclared_quote(sheet: Sheet) -> bool:
    if sheet.source.get("excel_safe"):
        return False
    sheet.quote, sheet.quoting = "'", "all"
    for row in sheet.rows:
        row.lost = True
    sheet.refusals |= {"unknown_column"}
    return True


def _encode(sheet: Sheet, encoding: str) -> bool:
    """Use an encoding if it has all characters of the text."""
    try:
        for row in sheet.rows:
            "".join(row.cells).encode(encoding)
    except UnicodeEncodeError:
        return False
    sheet.encoding, sheet.bom = encoding, b""
    return True


def _insert(whole: Any, place: int, part: Any) -> Any:
    return whole[:place] + part + whole[place:]


def _name(sheet: Sheet, slug: str) -> str:
    return next(name for name in sheet.header if name.strip().lower() == slug)


def _place(sheet: Sheet, slug: str) -> int:
    return sheet.header.index(_name(sheet, slug))


def _respell(sheet: Sheet, slug: str, spell: Callable[[str], str]) -> None:
    place = _place(sheet, slug)
    for row in sheet.rows:
        if row.cells[place] not in ("", TOKEN, NULL):
            row.cells[place] = spell(row.cells[place])


ODDITIES: list[Callable[[Sheet], Any]] = [
    *(another_delimiter, more_quotes, other_line_ends, blank_lines, no_final_line_end, marked_encoding, declared_encoding),
    *(packed, shuffled_columns, names_in_other_letters, trailing_delimiter, result_columns, other_dates, decimal_commas, national_phones),
    *(options_in_other_letters, blanks_and_tokens, blank_remarks_clear, guarded_formulas),
]
DAMAGES: list[Callable[[Sheet], Any]] = [
    *(short_row, long_row, text_after_quote, unquoted_delimiter, unclosed_quote, undeclared_spelling, undeclared_spelling, repeated_header),
    *(
        repeated_column,
        two_names_of_one_attribute,
        unknown_column,
        undeclared_encoding,
        nul_character,
        broken_byte,
        cut_off,
        undeclared_quote,
    ),
]
