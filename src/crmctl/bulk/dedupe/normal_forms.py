"""Normal forms: what makes two spellings of an e-mail address, a phone number, a name, a company or an address the same. Tables and pure
functions; `crmctl help matching` shows them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
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


TITLES = _words(
    "mr mrs ms miss mx dr prof professor sir madam herr frau mme mlle monsieur madame sr sra senor senora signor signora dipl ing "
    "mag drs phd md msc bsc mba rev hon esq"
)
"""Words of a name that are no part of who somebody is. Not `jr` and `ii`: these tell a son from his father."""

LEGAL_FORMS = _words(
    "inc incorporated corp corporation co company llc llp lp ltd limited plc gmbh mbh ag kg kgaa ohg ug ev eg se sa sas sarl sl srl spa "
    "bv nv vof ab oy oyj as asa aps sro zoo pty pte pvt bhd sdn kk "
    "holding holdings group ek gbr haftungsbeschrankt eurl sasu snc sca scs srls slu lda ltda doo dd kft zrt bt ehf hf eood ood "
    "ооо оао зао пао ао тоо"
)
"""Words of a company's name that say what it is in law."""

GLUED_FORMS = (
    "株式会社", "有限会社", "合同会社", "股份有限公司", "有限责任公司", "有限責任公司", "有限公司", "주식회사", "유한회사",
)  # fmt: skip
"""The same where no blank stands before or after it."""

STREET_WORDS: Mapping[str, str] = {
    "street": "st", "str": "st", "strasse": "st", "road": "rd", "avenue": "ave", "av": "ave", "boulevard": "blvd", "drive": "dr",
    "lane": "ln", "court": "ct", "crescent": "cres", "place": "pl", "square": "sq", "terrace": "tce", "parade": "pde", "circuit": "cct",
    "close": "cl", "highway": "hwy", "parkway": "pkwy", "platz": "pl", "north": "n", "south": "s", "east": "e", "west": "w",
    "apartment": "apt", "flat": "apt", "unit": "apt", "suite": "ste", "floor": "fl", "saint": "st", "mount": "mt",
}  # fmt: skip
"""Words of an address that are written in several ways, and the one they are read as."""

DOTLESS_MAIL = {"gmail.com": "gmail.com", "googlemail.com": "gmail.com"}
"""Mail services to which dots before the @ mean nothing, and the name they go by."""

ROLE_MAILBOXES = _words(
    "info office contact hello hi mail email team admin service support help helpdesk sales orders order purchasing booking bookings "
    "billing accounts accounting finance invoices hr jobs careers marketing press media enquiries enquiry inquiries reception secretary "
    "kontakt buero vertrieb verkauf einkauf buchhaltung service-desk webmaster postmaster hostmaster abuse privacy legal "
    "noreply no-reply donotreply nobody noemail nomail none na n/a unknown"
)
"""What stands before the @ of a mailbox that several people read, or nobody: no sign that two people are one."""

NO_VALUES = frozenset(
    ("n a", "na", "nan", "none", "null", "nil", "unknown", "not known", "not available", "not applicable", "not provided", "no name",
     "tbd", "tba", "xxx", "unbekannt", "keine angabe", "k a", "inconnu", "desconocido", "sconosciuto")
)  # fmt: skip
"""Words that stand for nothing where they are all of a value: no sign that two records are one."""

ALSO_NAMES = _words("na nan null nil tba")
"""Those of them that are names of people, and count as such."""

NO_DATES = _words("00000000 00010101 11111111 18991230 18991231 19000101 19700101 99991231")
"""Days that programs and people write when they know none."""

FILLED_UP = 6
"""A sign that is repeated so often stands for no value: 999999; three times is enough for 000."""

PHONE_DIGITS = 9
"""So many last digits tell a phone number: what comes before is a country or a trunk code, which people leave out."""

SHORT_CODES = _words("1 7")
TWO_DIGIT_CODES = _words(
    "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90 91 92 93 94 95 98"
)
"""Codes of countries after + or 00; all others have three digits."""

FEWEST_DIGITS = 6

_EXTENSION = re.compile(r"\s*(?:x|ext\.?|extension|;ext=|#|durchwahl|poste|int\.?)[\s.:]*\d{1,6}\s*$", re.IGNORECASE)
_NEXT_NUMBER = re.compile(r"[;,|]|\s/\s|\bor\b", re.IGNORECASE)
_POLISH_FORM = re.compile(r"\bsp z ?o ?o\b")
_HOUSE_LETTER = re.compile(r"(\d+)([a-z])")
_WEB_HOST = re.compile(r"www\d*\.")
_MAIL = re.compile(r"[^\s<>()\[\],;:\"]+@[^\s<>()\[\],;:\"@]+")
_UNSEEN = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_TOGETHER = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u3005]+")
_GLUED_STREET = re.compile(r"(?<=[a-z]{3})(strasse|str)$")
SILENT_SIGNS = "'’.`"
"""Signs inside words; other signs separate words."""

_SIGNS_APART = {ord(sign): "" if sign in SILENT_SIGNS else " " for sign in map(chr, range(128)) if not sign.isalnum()}
_ASCII_APART = bytes(ord(sign.lower() if sign.isalnum() else " ") for sign in map(chr, range(128))).ljust(256)
_ASCII_SILENT = SILENT_SIGNS.encode("ascii", "ignore")
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
    if text.isascii():
        return text.encode().translate(_ASCII_APART, _ASCII_SILENT).decode().split()
    text = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS_APART).translate(_UNSEEN))
    text = unicodedata.normalize("NFC", "".join(map(_letter, text)))
    return text.lower().translate(_SIGNS_APART).split()


def _letter(letter: str) -> str:
    """A letter without its accent. Marks of scripts whose words they tell apart stay: those of kana, of Indian and Thai vowels."""
    if letter.isalnum():
        return letter
    if unicodedata.category(letter)[0] == "M":
        return "" if letter < "\u0700" else letter
    return "" if letter in SILENT_SIGNS else " "


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


def _telling(text: str) -> str | None:
    """A text that says something; None for one that is blank or stands for nothing."""
    if not text or text in NO_VALUES:
        return None
    is_filled_up = text[0] == text[-1] and len(set(text)) == 1 and len(text) >= (3 if text[0] == "0" else FILLED_UP)
    return None if is_filled_up else text


def read_exact(value: Any) -> str | None:
    return unicodedata.normalize("NFC", said(value).strip()) or None


def read_text(value: Any) -> str | None:
    return _telling(plain_words(said(value)))


def read_email(value: Any) -> str | None:
    """The address of somebody: neither `info@acme.com` nor `test@test.com` is."""
    whole = read_any_email(value)
    local, _, host = (whole or "").rpartition("@")
    return None if local in ROLE_MAILBOXES or local == host.partition(".")[0] else whole


def read_any_email(value: Any) -> str | None:
    """The first address in it; what has none is no address: `n/a` is nothing that two people share."""
    text = said(value)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_UNSEEN)
    found = _MAIL.search(text.strip().casefold().replace("mailto:", ""))
    if found is None:
        return None
    local, _, host = found[0].strip("'.").rpartition("@")
    return f"{local}@{read_host(host)}"


def read_mailbox(value: Any) -> str | None:
    whole = read_email(value)
    local, at, host = (whole or "").rpartition("@")
    local = local.partition("+")[0]
    if host in DOTLESS_MAIL:
        local, host = local.replace(".", ""), DOTLESS_MAIL[host]
    return f"{local}{at}{host}" if local else whole


def read_host(text: str) -> str:
    """A host's name in lower case, without the last dot; one of other letters as it is read, not as it is sent."""
    host = text.strip(".").casefold()
    if "xn--" in host:
        with suppress(UnicodeError):
            return host.encode("ascii").decode("idna")
    return host


def read_digits(value: Any) -> str | None:
    text = said(value)
    if not text.isascii():
        text = "".join([str(unicodedata.decimal(letter, "")) or letter for letter in text])
    return text if text.isdecimal() else "".join([letter for letter in text if letter.isdecimal()]) or None


def read_code(value: Any) -> str | None:
    return _telling(read_digits(value) or "")


def read_phone(value: Any) -> str | None:
    if isinstance(value, Mapping):
        known = {fold(str(key)): item for key, item in value.items()}
        spellings = ("number", *PART_NAMES[AttributeType.PHONE_NUMBER]["number"])
        value = next((known[name] for name in spellings if known.get(name)), None)
    parts = [_EXTENSION.sub("", part) for part in _NEXT_NUMBER.split(_EXTENSION.sub("", said(value)))]
    numbers = ((part, read_digits(part) or "") for part in parts)
    text, digits = next(((part, digits) for part, digits in numbers if len(digits) >= FEWEST_DIGITS), ("", ""))
    if text.lstrip(" (").removeprefix("tel:").lstrip().startswith(("+", "＋")):
        digits = without_country(digits)
    elif digits.startswith("00"):
        digits = without_country(digits[2:])
    digits = digits.lstrip("0")[-PHONE_DIGITS:]
    # One digit again and again stands for no number.
    return digits if len(set(digits)) > 1 else None


def without_country(digits: str) -> str:
    """An international number as it is dialled at home."""
    return digits[1:] if digits[:1] in SHORT_CODES else digits[2:] if digits[:2] in TWO_DIGIT_CODES else digits[3:]


def read_name(value: Any) -> str | None:
    words = words_of(value if isinstance(value, str) else said(value, ("first", "middle", "last")))
    if words and all(map(_TOGETHER.fullmatch, words)):
        return "".join(words)
    if not TITLES.isdisjoint(words):
        words = [word for word in words if word not in TITLES] or words
    text = " ".join(words)
    return " ".join(sorted(words)) if text in ALSO_NAMES or _telling(text) else None


def read_company(value: Any) -> str | None:
    text = " ".join(_joined(words_of(said(value).replace("&", " and ").replace("+", " and "))))
    if not text.isascii():
        for form in GLUED_FORMS:
            text = text.removeprefix(form).removesuffix(form).strip() or text
    words = [word for word in _POLISH_FORM.sub("", text).split() if word != "the"]
    left = [word for word in words if word not in LEGAL_FORMS]
    while left[-1:] == ["and"]:
        left.pop()
    return _telling(" ".join(left or words))


def _joined(words: list[str]) -> list[str]:
    """Letters that stand alone one after the other are one word: `S. A. R. L.`, `A/S`."""
    found: list[str] = []
    last = 0
    for word in words:
        if len(word) == 1 == last and word.isalpha() and found[-1].isalpha():
            found[-1] += word
        else:
            found.append(word)
        last = len(word)
    return found


def read_address(value: Any) -> str | None:
    text = value if isinstance(value, str) else said(value, tuple(PART_NAMES[AttributeType.ADDRESS]))
    words = words_of(text.replace("#", " apt ") if "#" in text else text)
    return _telling(" ".join(map(_street_word, words)))


@lru_cache(maxsize=100_000)
def _street_word(word: str) -> str:
    """A word of an address as it is read."""
    if (house := _HOUSE_LETTER.fullmatch(word)) is not None:
        return f"{house[1]} {house[2]}"
    return " ".join([STREET_WORDS.get(part, part) for part in _GLUED_STREET.sub(" st", word).split()])


def read_domain(value: Any) -> str | None:
    """What has no dot is no host: `n/a` is nothing that two companies share."""
    text = said(value).strip().casefold()
    place = text.partition("//")[2] if "//" in text else read_any_email(text) or text
    place = re.split(r"[/?#\s]", place, maxsplit=1)[0].rpartition("@")[2].partition(":")[0]
    host = _WEB_HOST.sub("", read_host(place), count=1) if place.startswith("www") else read_host(place)
    return host if "." in host else None


def read_date(value: Any) -> str | None:
    digits = read_digits(said(value)[:10])
    return None if digits in NO_DATES else digits or read_text(value)


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
    return said(value.get("id") if isinstance(value, Mapping) else value).strip().casefold() or None


_TABLE = (
    NormalForm(
        "email", "the address in it, without case; of Ada <ada@x.com> what is in brackets; info@ is nobody's", read_email, keys="email"
    ),
    NormalForm("any-email", "as email, info@ too", read_any_email, keys="email"),
    NormalForm("mailbox", "as email, without +tag; at gmail.com also without dots", read_mailbox, keys="email"),
    NormalForm(
        "phone",
        f"the last {PHONE_DIGITS} digits, without the country after + or 00, leading 0 and extension; fewer than {FEWEST_DIGITS} are none",
        read_phone,
    ),
    NormalForm("name", "words in any order, without accents, case, signs and titles", read_name, measure="name", keys="words"),
    NormalForm("company", "words without accents, case, signs and legal form; & is and", read_company, measure="words", keys="words"),
    NormalForm("address", "words without accents, case, signs; Street is St", read_address, measure="words", keys="words"),
    NormalForm("domain", "the host of a web or e-mail address, without www; other subdomains count", read_domain),
    NormalForm("text", "words without accents, case and signs", read_text, measure="words", keys="words"),
    NormalForm("exact", "outer blanks and the composition of letters aside, as it is", read_exact),
    NormalForm("digits", "digits only", read_code),
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
"""How an attribute is read when its type is all that is known; an e-mail address of companies as `any-email`."""

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
    form = word_form(attribute.slug) if kind == AttributeType.TEXT else BY_TYPE.get(kind, "text")
    singular = f"{object_slug[:-3]}y" if object_slug.endswith("ies") else object_slug.removesuffix("s")
    if BY_WORD.get(singular) == "company":
        form = "company" if attribute.slug == "name" and kind == AttributeType.TEXT else "any-email" if form == "email" else form
    return FORMS[form]


@lru_cache(maxsize=512)
def word_form(name: str) -> str:
    """The name of the form that the words of a slug, or of a column's name, ask for; `text` when none does."""
    words = plain_words(name.replace("_", " ").replace("-", " ")).split()
    return next((BY_WORD[word] for word in (*words, "".join(words)) if word in BY_WORD), "name" if words[-1:] == ["name"] else "text")
