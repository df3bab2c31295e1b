"""Match rules and the normal forms they compare."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from crmctl.errors import RejectedError, UsageError, install_command
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import reference_id, suggestion
from crmctl.models.numbers import canonical_number
from crmctl.models.numbers import read_number as parse_number
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import PART_NAMES
from crmctl.values.composites import fold


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _words(
    "mr mrs ms miss mx dr prof professor sir madam herr frau mme mlle monsieur madame sr sra senor senora signor signora dipl ing "
    "mag drs phd md msc bsc mba rev hon esq"
)
"""Words of a name that do not identify a person. `jr` and `ii` are not listed: they distinguish father and son."""

LEGAL_FORMS = _words(
    "inc incorporated corp corporation co company llc llp lp ltd limited plc gmbh mbh ag kg kgaa ohg ug ev eg se sa sas sarl sl srl spa "
    "bv nv vof ab oy oyj as asa aps sro zoo pty pte pvt bhd sdn kk "
    "holding holdings group ek gbr haftungsbeschrankt eurl sasu snc sca scs srls slu lda ltda doo dd kft zrt bt ehf hf eood ood "
    "ооо оао зао пао ао тоо"
)
"""Legal forms in company names."""

GLUED_FORMS = (
    "株式会社", "有限会社", "合同会社", "股份有限公司", "有限责任公司", "有限責任公司", "有限公司", "주식회사", "유한회사",
)  # fmt: skip
"""Legal forms written without a blank before or after."""

STREET_WORDS: Mapping[str, str] = {
    "street": "st", "str": "st", "strasse": "st", "road": "rd", "avenue": "ave", "av": "ave", "boulevard": "blvd", "drive": "dr",
    "lane": "ln", "court": "ct", "crescent": "cres", "place": "pl", "square": "sq", "terrace": "tce", "parade": "pde", "circuit": "cct",
    "close": "cl", "highway": "hwy", "parkway": "pkwy", "platz": "pl", "north": "n", "south": "s", "east": "e", "west": "w",
    "apartment": "apt", "flat": "apt", "unit": "apt", "suite": "ste", "floor": "fl", "saint": "st", "mount": "mt",
}  # fmt: skip
"""Words of an address that have several spellings, with their normal form."""

DOTLESS_MAIL = {"gmail.com": "gmail.com", "googlemail.com": "gmail.com"}
"""Mail services that ignore dots before the @, and their normal name."""

ROLE_MAILBOXES = _words(
    "info office contact hello hi mail email team admin service support help helpdesk sales orders order purchasing booking bookings "
    "billing accounts accounting finance invoices hr jobs careers marketing press media enquiries enquiry inquiries reception secretary "
    "kontakt buero vertrieb verkauf einkauf buchhaltung service-desk webmaster postmaster hostmaster abuse privacy legal "
    "noreply no-reply donotreply nobody noemail nomail none na n/a unknown"
)
"""Names of shared mailboxes, before the @. They do not identify a person."""

NO_VALUES = frozenset(
    ("n a", "na", "nan", "none", "null", "nil", "unknown", "not known", "not available", "not applicable", "not provided", "no name",
     "tbd", "tba", "xxx", "unbekannt", "keine angabe", "k a", "inconnu", "desconocido", "sconosciuto")
)  # fmt: skip
"""Placeholder words. As a whole value, they do not identify a record."""

ALSO_NAMES = _words("na nan null nil tba")
"""Placeholders that are also names of people, and are treated as names."""

NO_DATES = _words("00000000 00010101 11111111 18991230 18991231 19000101 19700101 99991231")
"""Dates that people and programs enter in place of an unknown date."""

FILLED_UP = 6
"""Repetitions of one character that mark a placeholder such as 999999. For zero, three are enough."""

PHONE_DIGITS = 9
"""Number of last digits that identify a phone number. People omit the country or trunk code before them."""

SHORT_CODES = _words("1 7")
TWO_DIGIT_CODES = _words(
    "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90 91 92 93 94 95 98"
)
"""Country codes of two digits after + or 00. All others have three digits."""

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
"""Characters that do not separate words. All other signs do."""

_SIGNS_APART = {ord(sign): "" if sign in SILENT_SIGNS else " " for sign in map(chr, range(128)) if not sign.isalnum()}
_ASCII_APART = bytes(ord(sign.lower() if sign.isalnum() else " ") for sign in map(chr, range(128))).ljust(256)
_ASCII_SILENT = SILENT_SIGNS.encode("ascii", "ignore")
_LETTERS_APART = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ı": "i"})


@frozen
class NormalForm:
    """A way of normalising values.

    `read` returns the same text for all spellings of a value, None for a blank one. `measure` names the likeness of two such texts
    (`similarity`), `keys` the way to find likely pairs without comparing all (`blocks`).
    """

    name: str
    about: str
    read: Callable[[Any], str | None]
    measure: str = "edits"
    keys: str = "code"


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents and punctuation."""
    if text.isascii():
        return text.encode().translate(_ASCII_APART, _ASCII_SILENT).decode().split()
    text = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS_APART).translate(_UNSEEN))
    text = unicodedata.normalize("NFC", "".join(map(_letter, text)))
    return text.lower().translate(_SIGNS_APART).split()


def _letter(letter: str) -> str:
    """Return a letter without its accent. Keeps marks that distinguish words in kana, Indian and Thai scripts."""
    if letter.isalnum():
        return letter
    if unicodedata.category(letter)[0] == "M":
        return "" if letter < "\u0700" else letter
    return "" if letter in SILENT_SIGNS else " "


def plain_words(text: str) -> str:
    return " ".join(words_of(text))


def said(value: Any, order: tuple[str, ...] = ()) -> str:
    """Return the text of a value: all parts of a composite, those of `order` first, or every item of a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        by_part = {fold(str(key)): item for key, item in value.items()}
        parts = [said(by_part.pop(fold(name))) for name in order if fold(name) in by_part]
        return " ".join(filter(None, [*parts, *(said(item) for item in by_part.values())]))
    if isinstance(value, list):
        return " ".join(filter(None, map(said, value)))
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return jsontext.dumps(value)


def _telling(text: str) -> str | None:
    """Return a text; None if it is blank or a placeholder."""
    if not text or text in NO_VALUES:
        return None
    is_filled_up = text[0] == text[-1] and len(set(text)) == 1 and len(text) >= (3 if text[0] == "0" else FILLED_UP)
    return None if is_filled_up else text


def read_exact(value: Any) -> str | None:
    return unicodedata.normalize("NFC", said(value).strip()) or None


def read_text(value: Any) -> str | None:
    return _telling(plain_words(said(value)))


def read_email(value: Any) -> str | None:
    """Return a personal address; None for addresses such as `info@acme.com` or `test@test.com`."""
    address = read_any_email(value)
    local, _, host = (address or "").rpartition("@")
    return None if local in ROLE_MAILBOXES or local == host.partition(".")[0] else address


def read_any_email(value: Any) -> str | None:
    """Return the first address in a value; None if there is none, as in `n/a`."""
    text = said(value)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_UNSEEN)
    address = _MAIL.search(text.strip().casefold().replace("mailto:", ""))
    if address is None:
        return None
    local, _, host = address[0].strip("'.").rpartition("@")
    return f"{local}@{read_host(host)}"


def read_mailbox(value: Any) -> str | None:
    address = read_email(value)
    local, at, host = (address or "").rpartition("@")
    local = local.partition("+")[0]
    if host in DOTLESS_MAIL:
        local, host = local.replace(".", ""), DOTLESS_MAIL[host]
    return f"{local}{at}{host}" if local else address


def read_host(text: str) -> str:
    """Return a host name in lower case, decoded from punycode, without a trailing dot."""
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
        by_part = {fold(str(key)): item for key, item in value.items()}
        spellings = ("number", *PART_NAMES[AttributeType.PHONE_NUMBER]["number"])
        value = next((by_part[name] for name in spellings if by_part.get(name)), None)
    parts = [_EXTENSION.sub("", part) for part in _NEXT_NUMBER.split(_EXTENSION.sub("", said(value)))]
    numbers = ((part, read_digits(part) or "") for part in parts)
    text, digits = next(((part, digits) for part, digits in numbers if len(digits) >= FEWEST_DIGITS), ("", ""))
    if text.lstrip(" (").removeprefix("tel:").lstrip().startswith(("+", "＋")):
        digits = without_country(digits)
    elif digits.startswith("00"):
        digits = without_country(digits[2:])
    digits = digits.lstrip("0")[-PHONE_DIGITS:]
    # a single repeated digit is a placeholder
    return digits if len(set(digits)) > 1 else None


def without_country(digits: str) -> str:
    """Return an international number as dialled within its country."""
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
    text = " ".join(_joined_words(words_of(said(value).replace("&", " and ").replace("+", " and "))))
    if not text.isascii():
        for form in GLUED_FORMS:
            text = text.removeprefix(form).removesuffix(form).strip() or text
    words = [word for word in _POLISH_FORM.sub("", text).split() if word != "the"]
    words_left = [word for word in words if word not in LEGAL_FORMS]
    while words_left[-1:] == ["and"]:
        words_left.pop()
    return _telling(" ".join(words_left or words))


def _joined_words(words: list[str]) -> list[str]:
    """Join consecutive single letters: `S. A. R. L.`, `A/S`."""
    joined: list[str] = []
    last = 0
    for word in words:
        if len(word) == 1 == last and word.isalpha() and joined[-1].isalpha():
            joined[-1] += word
        else:
            joined.append(word)
        last = len(word)
    return joined


def read_address(value: Any) -> str | None:
    text = value if isinstance(value, str) else said(value, tuple(PART_NAMES[AttributeType.ADDRESS]))
    words = words_of(text.replace("#", " apt ") if "#" in text else text)
    return _telling(" ".join(map(_street_word, words)))


@lru_cache(maxsize=100_000)
def _street_word(word: str) -> str:
    if (house := _HOUSE_LETTER.fullmatch(word)) is not None:
        return f"{house[1]} {house[2]}"
    return " ".join([STREET_WORDS.get(part, part) for part in _GLUED_STREET.sub(" st", word).split()])


def read_domain(value: Any) -> str | None:
    """Return the host of a web address; None if it has no dot, as in `n/a`."""
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
    return said(reference_id(value)).strip().casefold() or None


_TABLE = (
    NormalForm(
        "email", "the address without case, also from Ada <ada@x.com>; shared mailboxes like info@ are ignored", read_email, keys="email"
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
"""Normal form of each attribute type. E-mail addresses of companies use `any-email`."""

BY_WORD: Mapping[str, str] = {
    "email": "email", "mail": "email", "phone": "phone", "mobile": "phone", "telephone": "phone", "fax": "phone",
    "domain": "domain", "website": "domain", "url": "domain", "web": "domain",
    "company": "company", "organization": "company", "organisation": "company", "employer": "company", "account": "company",
    "address": "address", "street": "address", "surname": "name", "firstname": "name", "lastname": "name", "fullname": "name",
}  # fmt: skip
"""Normal form of text attributes whose slug contains one of these words. The `name` of a company is a company name."""


def usual_form(attribute: Attribute, object_slug: str) -> NormalForm:
    kind = attribute.type or AttributeType.TEXT
    form = word_form(attribute.slug) if kind == AttributeType.TEXT else BY_TYPE.get(kind, "text")
    singular = f"{object_slug[:-3]}y" if object_slug.endswith("ies") else object_slug.removesuffix("s")
    if BY_WORD.get(singular) == "company":
        form = "company" if attribute.slug == "name" and kind == AttributeType.TEXT else "any-email" if form == "email" else form
    return FORMS[form]


@lru_cache(maxsize=512)
def word_form(name: str) -> str:
    """Return the form suggested by the words of a slug or column name, or else `text`."""
    words = plain_words(name.replace("_", " ").replace("-", " ")).split()
    return next((BY_WORD[word] for word in (*words, "".join(words)) if word in BY_WORD), "name" if words[-1:] == ["name"] else "text")


EDITS, NAME, WORDS = "edits", "name", "words"

WORD_LEAST = 0.82
"""Names below this likeness are different words, not typing errors: Ben is not Bob.

One letter of four may differ, none of three.
"""

GENERATIONS = frozenset(("jr", "junior", "ii", "iii", "iv"))
"""Words that distinguish father and son if only one of two names has them."""

MEASURES: Mapping[str, str] = {
    EDITS: "one minus the share of letters to change, insert, delete or swap (optimal string alignment)",
    NAME: f"Jaro-Winkler, words in alphabetical order; each word of the shorter name must resemble one of the longer (by {WORD_LEAST}, or "
    "by its initial)",
    WORDS: "the letters in common, words in alphabetical order (indel)",
}


TextMeasure = Callable[..., float]
"""Returns how alike two texts are; 0 below the keyword `score_cutoff` and for None."""


def measures() -> Mapping[str, TextMeasure]:
    """Return the functions by name. Raises UsageError if rapidfuzz is not installed."""
    try:
        distance: Any = import_module("rapidfuzz.distance")
    except ImportError as error:
        raise UsageError(
            "similarity (~) needs rapidfuzz, which is not installed", hint=install_command("dedupe"), code="not_installed"
        ) from error
    return {
        EDITS: distance.OSA.normalized_similarity,
        NAME: partial(_names_alike, distance.JaroWinkler.similarity),
        WORDS: distance.Indel.normalized_similarity,
    }


def _names_alike(measure: TextMeasure, a: str | None, b: str | None, /, *, score_cutoff: float) -> float:
    alike = measure(a, b, score_cutoff=score_cutoff)
    if not alike or alike == 1.0 or a is None or b is None:
        return alike
    first, other = set(a.split()), set(b.split())
    fewer, more = sorted((first - other, other - first), key=len)
    if not GENERATIONS.isdisjoint(fewer | more):
        return 0.0
    least = min(score_cutoff, WORD_LEAST)
    for word in fewer:
        if not any(word.startswith(word_b) or word_b.startswith(word) for word_b in more if 1 in (len(word), len(word_b))) and not any(
            measure(word, word_b, score_cutoff=least) for word_b in more
        ):
            return 0.0
    return alike


_TERM = re.compile(r"\s*(?P<fields>[^:~,?\s][^:~,?]*?)\s*(?::\s*(?P<form>[\w-]+)\s*)?(?:~\s*(?P<least>[^,~:?]*?)\s*)?(?P<unless>\?\s*)?")
HINT = "for example --match email, --match 'name~0.92,company', --match 'website:domain'; crmctl help matching"
LEAST = 0.5
"""Texts below this likeness have nothing in common. A rule with a lower limit is a mistake."""


@frozen
class Field:
    slug: str
    part: str | None = None

    @property
    def said(self) -> str:
        return f"{self.slug}.{self.part}" if self.part else self.slug

    def values(self, records: Sequence[Mapping[str, Any]]) -> list[Any]:
        slug = self.slug
        values = [data.get(slug) for data in records]
        if self.part is None:
            return values
        part = fold(self.part)
        return [next((item for key, item in value.items() if fold(key) == part), None) if isinstance(value, Mapping) else None
                for value in values]  # fmt: skip


@frozen
class MatchTerm:
    """One field, or several joined, in a normal form: equal, or alike by at least `least` (0 to 1).

    A blank value does not match. In an `optional` term it does; such a term rejects only two different values.
    """

    fields: tuple[Field, ...]
    form: NormalForm
    least: float | None = None
    optional: bool = False

    @property
    def source(self) -> str:
        """The fields and their form. Terms that differ only in `least` share the values read."""
        return f"{'+'.join(field.said for field in self.fields)}:{self.form.name}"

    @property
    def said(self) -> str:
        """Return the term as written in a rule, with its form."""
        return self.source + (f"~{self.least:g}" if self.least is not None else "") + ("?" if self.optional else "")

    @property
    def reading(self) -> str:
        """The source, and whether its words are sorted."""
        return f"{self.source}, words sorted" if self.sorts else self.source

    @property
    def sorts(self) -> bool:
        return self.least is not None and self.form.measure == WORDS

    def read(self, records: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return the normal form of each record's value; None for blanks."""
        read, columns = self.form.read, [field.values(records) for field in self.fields]
        values = columns[0] if len(columns) == 1 else map(_joined, zip(*columns, strict=True))
        return [None if value is None or value == "" else read(value) for value in values]


def _joined(values: Sequence[Any]) -> Any:
    filled = [value for value in values if value is not None and value != ""]
    try:
        return " ".join(filled)
    except TypeError:
        return filled[0] if len(filled) == 1 else filled


def sort_words(text: str | None) -> str | None:
    """Return a normal form with its words in alphabetical order."""
    return " ".join(sorted(text.split())) if text and " " in text else text


@frozen
class MatchRule:
    """Terms that must all match, and their text."""

    text: str
    terms: tuple[MatchTerm, ...]

    @property
    def said(self) -> str:
        return ",".join(term.said for term in self.terms)

    @property
    def is_equality(self) -> bool:
        return all(term.least is None for term in self.terms)


def parse_rules(texts: Sequence[str], attributes: Sequence[Attribute], object_slug: str) -> tuple[MatchRule, ...]:
    """Parse the rules of `--match`, in order. Raises UsageError for invalid rules and unknown names."""
    by_slug = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    if not texts:
        raise UsageError("say what makes two records the same: --match", hint=HINT, code="no_rule")
    rules = tuple(MatchRule(text, tuple(_term(term, text, by_slug, object_slug) for term in text.split(","))) for text in texts)
    for rule in rules:
        if all(term.optional for term in rule.terms):
            raise UsageError(f"--match {rule.text}: a term without ? has to hold", hint=HINT, code="malformed_rule")
    return rules


def _term(term_text: str, text: str, by_slug: Mapping[str, Attribute], object_slug: str) -> MatchTerm:
    match = _TERM.fullmatch(term_text)
    if match is None:
        raise UsageError(f"--match {text}: {term_text.strip()!r} is no term", hint=HINT, code="malformed_rule")
    fields = tuple(_field(name.strip(), text, by_slug) for name in match["fields"].split("+"))
    first = by_slug[fields[0].slug]
    form = usual_form(first, object_slug)
    if fields[0].part:
        form = FORMS["name" if first.type == "name" else "text"]
    if (form_name := match["form"]) is not None:
        if form_name not in FORMS:
            raise UsageError(
                f"--match {text}: there is no form {form_name}",
                hint=suggestion(form_name, FORMS, f"one of: {', '.join(FORMS)}"),
                code="unknown_form",
            )
        form = FORMS[form_name]
    return MatchTerm(fields, form, _least(match["least"], text), match["unless"] is not None)


def _field(name: str, text: str, by_slug: Mapping[str, Attribute]) -> Field:
    slug, dot, part = (name, "", "") if name in by_slug else name.partition(".")
    if slug not in by_slug or (dot and not part):
        hint = f"the attributes are: {', '.join(by_slug)}"
        raise UsageError(f"--match {text}: there is no attribute {slug}", hint=hint, code="unknown_attribute")
    return Field(slug, part or None)


def _least(least_text: str | None, text: str) -> float | None:
    if least_text is None:
        return None
    try:
        least = float(least_text)
    except ValueError:
        least = -1.0
    if not LEAST <= least < 1.0:
        raise UsageError(
            f"--match {text}: {least_text!r} is no similarity", hint=f"from {LEAST} (hardly alike) to 0.99; without ~ it means equal",
            code="malformed_rule",
        )  # fmt: skip
    return least
