"""Normal forms: what makes two spellings of an e-mail address, a phone number, a name, a company or an address the same. Tables and pure
functions; `crmctl help matching` shows them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import fold
from crmctl.models.numbers import canonical_number
from crmctl.models.numbers import read_number as parse_number
from crmctl.models.part_names import PART_NAMES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _words("mr mrs ms miss mx dr prof professor sir madam herr frau mme mlle monsieur madame sr sra dipl ing phd md jr")
"""Words of a name that are no part of who somebody is."""

LEGAL_FORMS = _words(
    "inc incorporated corp corporation co company llc llp lp ltd limited plc gmbh mbh ag kg kgaa ohg ug ev eg se sa sas sarl sl srl spa "
    "bv nv vof ab oy oyj as asa aps sro zoo pty pvt bhd sdn kk holding holdings group"
)
"""Words of a company's name that say what it is in law."""

STREET_WORDS: Mapping[str, str] = {
    "street": "st", "str": "st", "strasse": "st", "road": "rd", "avenue": "ave", "av": "ave", "boulevard": "blvd", "drive": "dr",
    "lane": "ln", "court": "ct", "crescent": "cres", "place": "pl", "square": "sq", "terrace": "tce", "parade": "pde", "circuit": "cct",
    "close": "cl", "highway": "hwy", "parkway": "pkwy", "platz": "pl", "north": "n", "south": "s", "east": "e", "west": "w",
    "apartment": "apt", "flat": "apt", "unit": "apt", "suite": "ste", "floor": "fl", "saint": "st", "mount": "mt",
}  # fmt: skip
"""Words of an address that are written in several ways, and the one they are read as."""

DOTLESS_MAIL = {"gmail.com": "gmail.com", "googlemail.com": "gmail.com"}
"""Mail services to which dots before the @ mean nothing, and the name they go by."""

PHONE_DIGITS = 9
"""So many last digits tell a phone number: what comes before is a country or a trunk code, which people leave out."""

_EXTENSION = re.compile(r"(?:\s*(?:x|ext\.?|extension|;ext=)\s*\d{1,6})\s*$", re.IGNORECASE)
_GLUED_STREET = re.compile(r"(?<=[a-z]{3})(strasse|str)$")
_ADDRESS_IN_BRACKETS = re.compile(r"<([^<>@\s]+@[^<>\s]+)>")
SILENT_SIGNS = "'’.`"
"""Signs inside words; other signs separate words."""

_SIGNS_APART = {ord(sign): "" if sign in SILENT_SIGNS else " " for sign in map(chr, range(128)) if not sign.isalnum()}
_LETTERS_APART = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ı": "i"})


@dataclass(frozen=True)
class NormalForm:
    """One way of reading values: `read` gives the same text for all spellings of one value, None for a blank one. `measure` says how alike
    two such texts are (`similarity`), `keys` how likely pairs are found without comparing all (`blocks`)."""

    name: str
    about: str
    read: Callable[[Any], str | None]
    measure: str = "edits"
    keys: str = "code"


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without accents and signs."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS_APART))
        text = "".join(letter for letter in text if not unicodedata.combining(letter))
        text = "".join(letter if letter.isalnum() else "" if letter in SILENT_SIGNS else " " for letter in text)
    return text.lower().translate(_SIGNS_APART).split()


def plain_words(text: str) -> str:
    """Text in lower case without accents and signs, one blank between words."""
    return " ".join(words_of(text))


def said(value: Any, order: tuple[str, ...] = ()) -> str:
    """The text of a value: of one with parts all of them, those of `order` first; of a list every item."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        known = {fold(str(key)): item for key, item in value.items()}
        parts = [said(known.pop(fold(name))) for name in order if fold(name) in known]
        return " ".join(filter(None, [*parts, *(said(item) for item in known.values())]))
    if isinstance(value, list):
        return " ".join(filter(None, map(said, value)))
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return jsontext.dumps(value)


def read_exact(value: Any) -> str | None:
    return unicodedata.normalize("NFC", said(value).strip()) or None


def read_text(value: Any) -> str | None:
    return plain_words(said(value)) or None


def read_email(value: Any) -> str | None:
    text = said(value).strip().casefold().removeprefix("mailto:")
    found = _ADDRESS_IN_BRACKETS.search(text)
    return (found[1] if found else text) or None


def read_mailbox(value: Any) -> str | None:
    local, at, host = (read_email(value) or "").rpartition("@")
    local = local.partition("+")[0]
    if host in DOTLESS_MAIL:
        local, host = local.replace(".", ""), DOTLESS_MAIL[host]
    return f"{local}{at}{host}" or None


def read_digits(value: Any) -> str | None:
    text = said(value)
    return text if text.isdecimal() else "".join([letter for letter in text if letter.isdecimal()]) or None


def read_phone(value: Any) -> str | None:
    if isinstance(value, Mapping):
        known = {fold(str(key)): item for key, item in value.items()}
        spellings = ("number", *PART_NAMES[AttributeType.PHONE_NUMBER]["number"])
        value = next((known[name] for name in spellings if known.get(name)), None)
    digits = read_digits(_EXTENSION.sub("", said(value))) or ""
    return digits.lstrip("0")[-PHONE_DIGITS:] if len(digits) >= 6 else None


def read_name(value: Any) -> str | None:
    words = words_of(value if isinstance(value, str) else said(value, ("first", "middle", "last")))
    return " ".join(sorted([word for word in words if word not in TITLES] or words)) or None


def read_company(value: Any) -> str | None:
    words = [word for word in words_of(said(value).replace("&", " and ").replace("+", " and ")) if word != "the"]
    return " ".join([word for word in words if word not in LEGAL_FORMS] or words) or None


def read_address(value: Any) -> str | None:
    words = words_of(value if isinstance(value, str) else said(value, tuple(PART_NAMES[AttributeType.ADDRESS])))
    return " ".join([street_word(word) for word in words]) or None


@lru_cache(maxsize=100_000)
def street_word(word: str) -> str:
    """A word of an address as it is read."""
    return " ".join([STREET_WORDS.get(part, part) for part in _GLUED_STREET.sub(" st", word).split()])


def read_domain(value: Any) -> str | None:
    text = said(value).strip().casefold()
    host = text.rpartition("@")[2] if "@" in text and "/" not in text else text.partition("://")[2] or text
    return host.partition("/")[0].partition("?")[0].partition(":")[0].removeprefix("www.").rstrip(".") or None


def read_date(value: Any) -> str | None:
    digits = read_digits(said(value)[:10])
    return digits or read_text(value)


def read_number(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("amount", value.get("value"))
    if isinstance(value, str):
        try:
            value = parse_number(value)
        except RejectedError:
            return read_text(value)
    return None if value is None or isinstance(value, bool | list | Mapping) else canonical_number(value)


def read_id(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("id")
    return read_email(value)


_TABLE = (
    NormalForm("email", "without case and outer blanks; of Ada <ada@x.com> the address", read_email, keys="email"),
    NormalForm("mailbox", "as email, without +tag; at gmail.com also without dots", read_mailbox, keys="email"),
    NormalForm("phone", f"the last {PHONE_DIGITS} digits, without extension; fewer than 6 are no number", read_phone),
    NormalForm("name", "words in any order, without accents, case, signs and titles", read_name, measure="name", keys="words"),
    NormalForm("company", "words without accents, case, signs and legal form; & is and", read_company, measure="words", keys="words"),
    NormalForm("address", "words without accents, case, signs; Street is St", read_address, measure="words", keys="words"),
    NormalForm("domain", "the host of a web or e-mail address, without www", read_domain),
    NormalForm("text", "words without accents, case and signs", read_text, measure="words", keys="words"),
    NormalForm("exact", "outer blanks and the composition of letters aside, as it is", read_exact),
    NormalForm("digits", "digits only", read_digits),
    NormalForm("date", "year, month, day", read_date),
    NormalForm("number", "the value, however it is written", read_number),
    NormalForm("id", "the id of a record", read_id),
)

FORMS: Mapping[str, NormalForm] = {form.name: form for form in _TABLE}

BY_TYPE: Mapping[str, str] = {
    AttributeType.EMAIL: "email",
    AttributeType.PHONE_NUMBER: "phone",
    AttributeType.NAME: "name",
    AttributeType.ADDRESS: "address",
    AttributeType.NUMBER: "number",
    AttributeType.CURRENCY: "number",
    AttributeType.DATE: "date",
    AttributeType.REFERENCE: "id",
    AttributeType.CHECKBOX: "exact",
    AttributeType.SELECT: "exact",
    AttributeType.LIST: "text",
    AttributeType.TEXT: "text",
}
"""How an attribute is read when its type is all that is known."""

BY_WORD: Mapping[str, str] = {
    "email": "email", "mail": "email", "phone": "phone", "mobile": "phone", "telephone": "phone", "fax": "phone",
    "domain": "domain", "website": "domain", "url": "domain", "web": "domain",
    "company": "company", "organization": "company", "organisation": "company", "employer": "company", "account": "company",
    "address": "address", "street": "address", "surname": "name", "firstname": "name", "lastname": "name", "fullname": "name",
}  # fmt: skip
"""How a text attribute is read that has one of these words in its slug; a `name` of companies is a company's."""


def usual_form(attribute: Attribute, object_slug: str) -> NormalForm:
    """The form in which values of an attribute are compared when none is said."""
    kind = attribute.type or AttributeType.TEXT
    if kind != AttributeType.TEXT:
        return FORMS[BY_TYPE.get(kind, "text")]
    singular = f"{object_slug[:-3]}y" if object_slug.endswith("ies") else object_slug.removesuffix("s")
    if attribute.slug == "name" and BY_WORD.get(singular) == "company":
        return FORMS["company"]
    return FORMS[word_form(attribute.slug)]


@lru_cache(maxsize=512)
def word_form(name: str) -> str:
    """The name of the form that the words of a slug, or of a column's name, ask for; `text` when none does."""
    words = plain_words(name.replace("_", " ").replace("-", " ")).split()
    return next((BY_WORD[word] for word in (*words, "".join(words)) if word in BY_WORD), "name" if words[-1:] == ["name"] else "text")
