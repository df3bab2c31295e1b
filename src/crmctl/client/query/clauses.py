"""Conditions and sort keys of a query, resolved against the attributes of an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from crmctl.client.directory import SORTS, known_attributes
from crmctl.client.query.record_filter import Bound, ListOrder, LocalCondition, QueryContext, RecordFilter
from crmctl.client.query.record_query import RecordQuery
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.ids import did_you_mean, is_uuid, nearest, reference_ids
from crmctl.models.resources import Attribute, AttributeType, Record
from crmctl.values.attribute_types import COMPOSITE_TYPES, Family, type_of
from crmctl.values.composites import Form, knows_part, learn_form, unknown_part, usual_name
from crmctl.values.conditions import elements_of, keys_of, value_test
from crmctl.values.filters import FIELDS_OF_EVERY_RECORD, Clause, Condition, check_slugs, mistaken_value, parse_clause
from crmctl.values.folded_text import fold
from crmctl.values.moments import EPOCH, Moment, micros_of, read_moment, to_timestamp
from crmctl.values.operators import SIGNS, Kind, Operator


def parts_of(attribute: Attribute, value: Any, part: str) -> list[Any]:
    """Return the values of a part, in a value or in each element of an array. The part may be spelled differently there."""
    parts = []
    usual = usual_name(attribute, part)
    for element in elements_of(value):
        if isinstance(element, Mapping):
            keys = [part] if part in element else [key for key in element if usual is not None and usual_name(attribute, key) == usual]
            parts += [element[key] for key in keys if element[key] not in (None, "")]
        elif usual is not None and usual == type_of(attribute.type).bare:
            parts.append(element)
    return parts


def part_filter(attribute: Attribute, part: str, clause: Clause) -> RecordFilter:
    """Return the filter of a condition on one part of a composite. Raises UsageError for an operator that parts do not have."""
    as_plain = plain_part(attribute, part, clause.target)
    positive = clause.operator.positive
    tests = [value_test(as_plain, positive, value) for value in clause.values]
    undecided: set[str] = set()

    def admits(record: Record) -> bool:
        value = record.data.get(attribute.slug)
        parts = parts_of(attribute, value, part)
        texts = [element for element in elements_of(value) if isinstance(element, str)] if not parts else ()
        if texts and (not positive.meaning.finds_operand or any(fold(value) in fold(text) for text in texts for value in clause.values)):
            undecided.add(record.id)
        return any(test(parts) for test in tests) is not clause.operator.is_negation

    def remark() -> str | None:
        if not undecided:
            return None
        have = "1 record has" if len(undecided) == 1 else f"{len(undecided):,} records have"
        hold = " that holds it" if positive.meaning.finds_operand else ""
        return f"{have} {attribute.slug} as one text{hold}: it has no parts, so {clause.target} says nothing of it"

    def text_of_part(value: Any) -> str | None:
        parts = parts_of(attribute, value, part) if any(isinstance(element, Mapping) for element in elements_of(value)) else []
        return next((element if isinstance(element, str) else jsontext.dumps(element) for element in parts), None)

    condition = LocalCondition(admits, _narrowing(attribute, part, clause), part=text_of_part, remark=remark)
    return RecordFilter(local_conditions=(condition,))


def _is_amount(attribute: Attribute, part: str) -> bool:
    return attribute.type == AttributeType.CURRENCY and usual_name(attribute, part) == "amount"


def plain_part(attribute: Attribute, part: str, name: str) -> Attribute:
    """Return an attribute whose values compare as those of a part."""
    return Attribute(id="", slug=name, type=AttributeType.NUMBER if _is_amount(attribute, part) else AttributeType.TEXT, is_list=True)


def _narrowing(attribute: Attribute, part: str, clause: Clause) -> tuple[Condition, ...]:
    """Return conditions on the whole composite, one of which every record with such a part meets."""
    slug, operator = attribute.slug, clause.operator
    if operator.is_negation or (operator is Operator.EQUALS and "" in clause.values):
        return ()  # no condition of the service finds the records without the part
    if _is_amount(attribute, part):
        return tuple(Condition(slug, operator, value) for value in clause.values)
    if attribute.type != AttributeType.CURRENCY and operator.meaning.kind is Kind.TRUTH:
        raise UsageError(f"{operator} does not apply to {clause.target}", hint="parts are texts", code="bad_filter")
    if attribute.type != AttributeType.CURRENCY and operator.meaning.finds_operand:
        return tuple(Condition(slug, Operator.CONTAINS, value) for value in clause.values)
    return (Condition(slug, Operator.IS_NOT_EMPTY),)


def any_of(conditions: tuple[Condition, ...], attributes: Mapping[str, Attribute], *, is_disjoint: bool = False) -> LocalCondition:
    """Return a choice that holds when one of the conditions does."""
    tests = [(condition.slug, value_test(attributes[condition.slug], condition.operator, condition.value)) for condition in conditions]

    def admits(record: Record) -> bool:
        return any(test(record.data.get(slug)) for slug, test in tests)

    return LocalCondition(admits, conditions, is_exact=True, is_disjoint=is_disjoint)


def moment_filter(name: str, clause: Clause, now: float) -> RecordFilter:
    """Return the filter of a condition on `created_at` or `updated_at`. A day compares by its first moment and equals all its moments.

    Raises UsageError for a value that is no moment.
    """
    if clause.is_exact or clause.operator.meaning.kind not in (Kind.ORDER, Kind.EQUALITY):
        return RecordFilter(tuple(Condition(name, clause.operator, value) for value in clause.values))
    spans = [_span(name, clause.operator, read_moment(value, now)) for value in clause.values]
    if clause.operator is Operator.NOT_EQUALS:
        return RecordFilter(local_conditions=(LocalCondition(lambda record: not any(span.admits(record) for span in spans)),))
    if len(spans) == 1:
        return RecordFilter(bounds=(spans[0],))
    hull = _bound(name, min(span.least or 0 for span in spans), max(span.below or 0 for span in spans))
    return RecordFilter(bounds=(hull,), local_conditions=(LocalCondition(lambda record: any(span.admits(record) for span in spans)),))


def _span(name: str, operator: Operator, moment: Moment) -> Bound:
    at = _micros(moment)
    match operator:
        case Operator.LESS_THAN:
            return _bound(name, None, at)
        case Operator.LESS_THAN_OR_EQUAL:
            return _bound(name, None, at + 1)
        case Operator.GREATER_THAN:
            return _bound(name, at + 1, None)
        case Operator.GREATER_THAN_OR_EQUAL:
            return _bound(name, at, None)
        case _:
            return _bound(name, at, _micros(moment.next_day) if moment.is_day else at + 1)


def _micros(moment: Moment) -> int:
    return (moment.at - EPOCH) // (EPOCH.resolution)


def _bound(name: str, least: int | None, below: int | None) -> Bound:
    conditions = []
    if least is not None:
        operator, at = (Operator.GREATER_THAN_OR_EQUAL, least) if least % 1_000 == 0 else (Operator.GREATER_THAN, least - 1)
        conditions.append(Condition(name, operator, _operand(at)))
    if below is not None:
        operator, at = (Operator.LESS_THAN, below) if below % 1_000 == 0 else (Operator.LESS_THAN_OR_EQUAL, below - 1)
        conditions.append(Condition(name, operator, _operand(at)))
    return Bound(name, least, below, tuple(conditions))


def _operand(at: int) -> str:
    """Return a time with milliseconds, as most services write theirs: one that compares texts would take 00Z for later than 00.000Z."""
    return to_timestamp(at, timespec="milliseconds" if at % 1_000 == 0 else "auto")


MOST_EXCLUDED = 20
"""Most ids that one request excludes from a reference."""


SHOWN_OPTIONS = 20
NAMES = ("name", "full_name", "title", "label")
"""Attributes that name a record, the first an object has."""

_MONEY = re.compile(r"(?P<amount>[-+]?\d[\d.]*)\s*(?P<code>[A-Za-z]{3})")
_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
_OPERATOR_WORDS = "|".join((*map(str, Operator), r"not\s+in", "in"))


class FilterReader:
    """Read the filters of one object from text."""

    def __init__(self, context: QueryContext, object_name: str) -> None:
        self.context = context
        self.object_name = object_name

    @cached_property
    def attributes(self) -> Mapping[str, Attribute] | None:
        """The attributes by slug; None where the key may not read them."""
        attributes = known_attributes(self.context.directory, self.object_name, self.context.tell)
        return None if attributes is None else {attribute.slug: attribute for attribute in attributes}

    def read(self, conditions: Sequence[str | Condition]) -> RecordFilter:
        """Return one filter for all conditions. Raises UsageError for a malformed or mistaken condition, and the errors of look-ups."""
        record_filter = RecordFilter()
        clauses = [
            parse_clause(condition)
            if isinstance(condition, str)
            else Clause(condition.slug, condition.operator, (condition.value,), is_exact=True)
            for condition in conditions
        ]
        for clause in clauses:
            record_filter = record_filter & self.read_clause(clause)
        return record_filter

    def read_clause(self, clause: Clause) -> RecordFilter:
        """Return the filter of one condition. Raises like `read`."""
        attributes = self.attributes
        if clause.target in SORTS and clause.target not in (attributes or {}):
            return moment_filter(SORTS[clause.target], clause, self.context.now)
        if not attributes or clause.target in attributes or clause.target in FIELDS_OF_EVERY_RECORD:
            return self._plain(clause, attributes or {})
        head, dot, rest = clause.target.partition(".")
        attribute = attributes.get(head)
        if attribute is None or not dot:
            check_slugs([Condition(head if attribute is None else clause.target, clause.operator)], [*attributes.values()])
        if attribute is not None and attribute.type == AttributeType.REFERENCE:
            return self._related(attribute, rest, clause)
        if attribute is None or attribute.type not in COMPOSITE_TYPES:
            raise UsageError(
                f"{head} is a {attribute.type if attribute else 'plain'} attribute and has no parts, so {clause.target} means nothing",
                hint=f"--filter '{head}=...'",
                code="unknown_attribute",
            )
        self._check_part(attribute, rest)
        return part_filter(attribute, rest, clause)

    def _related(self, attribute: Attribute, rest: str, clause: Clause) -> RecordFilter:
        """Return the filter of a condition on referenced records, which are looked up first. Raises UsageError where the service does not
        name the referenced object."""
        slug, target = attribute.slug, attribute.target_object_id
        if target is None:
            raise UsageError(f"the service does not say what {slug} refers to", hint=f"{slug}=ID", code="unknown_attribute")
        is_negation = clause.operator.is_negation
        inner = replace(clause, target=rest, operator=clause.operator.positive)
        record_filter = FilterReader(self.context, target).read_clause(inner)
        query = RecordQuery(self.context, target, record_filter, purpose=f"to look up {slug}")
        ids = dict.fromkeys(record.id.lower() for record in query.records() if query.meets(record))
        if not ids:
            self.context.warn(f"no {slug} has {rest} {inner.operator} {', '.join(clause.values)}")

        def refers(record: Record) -> bool:
            return not ids.keys().isdisjoint(reference_ids(record.data.get(slug)))

        conditions = tuple(Condition(slug, Operator.NOT_EQUALS if is_negation else Operator.EQUALS, record_id) for record_id in ids)
        if is_negation:
            if len(ids) <= MOST_EXCLUDED:
                return RecordFilter(conditions, needs_body=len(ids) > 1)
            return RecordFilter(local_conditions=(LocalCondition(lambda record: not refers(record)),))
        if len(ids) <= 1:
            return RecordFilter(conditions, is_impossible=not ids)
        return RecordFilter(local_conditions=(LocalCondition(refers, conditions, is_exact=True, is_disjoint=not attribute.is_list),))

    def _check_part(self, attribute: Attribute, part: str) -> None:
        """Raises UsageError for a part that is neither a usual one nor in existing records."""
        if part and knows_part(attribute, part, Form()):
            return
        directory, crm = self.context.directory, self.context.crm
        page = directory.with_object(self.object_name, lambda target: crm.list_records(target, limit=100))
        form = learn_form(attribute, [record.data for record in page.items])
        if not part or not knows_part(attribute, part, form):
            raise unknown_part(attribute, part, form)

    def _plain(self, clause: Clause, attributes: Mapping[str, Attribute]) -> RecordFilter:
        """Return the filter of a condition that the service evaluates."""
        attribute = attributes.get(clause.target)
        values = clause.values
        if (mistaken := mistaken_value(clause)) is not None:
            self.context.warn(mistaken)
        if attribute is not None:
            self._check_alternatives(clause, attribute, attributes)
            money = [match for value in values if (match := _MONEY.fullmatch(value.strip()))]
            if attribute.type == AttributeType.CURRENCY and money and len(money) == len(values) and not clause.is_exact:
                return self._money_filter(clause, attribute, money, attributes)
            if clause.operator.meaning.kind is Kind.EQUALITY:
                self._check_possible(clause, attribute)
                if attribute.type == AttributeType.REFERENCE and not clause.is_exact:
                    values = tuple(value if is_uuid(value) or not value else self._named_id(attribute, clause, value) for value in values)
            if attribute.type == AttributeType.DATE and not clause.is_exact and clause.operator.meaning.kind in (Kind.ORDER, Kind.EQUALITY):
                # ISO dates and times stay unchanged
                values = tuple(
                    value if value[4:5] == "-" and micros_of(value) is not None else read_moment(value, self.context.now).for_date
                    for value in values
                )
        elif clause.target == "id" and clause.operator.meaning.kind is Kind.EQUALITY:
            for value in values:
                if value and not is_uuid(value):
                    self.context.doubt(f"{value!r} is no whole id, and equals none", "crmctl records get OBJECT ID takes the end of one")
        conditions = tuple(Condition(clause.target, clause.operator, value) for value in values)
        if len(conditions) == 1 or clause.operator is not Operator.EQUALS:
            return RecordFilter(conditions, needs_body=len(conditions) > 1)
        by_slug = dict(attributes)
        by_slug.setdefault(clause.target, Attribute(id="", slug=clause.target))
        single = attribute is not None and not attribute.is_list and attribute.type != AttributeType.LIST
        is_disjoint = single and len({fold(value) for value in values}) == len(values)
        return RecordFilter(local_conditions=(any_of(conditions, by_slug, is_disjoint=is_disjoint),))

    def _money_filter(
        self, clause: Clause, attribute: Attribute, money: Sequence[re.Match[str]], attributes: Mapping[str, Attribute]
    ) -> RecordFilter:
        """Return the filter of `amount>1000 EUR`: the service compares the amount, crmctl the currency too."""
        amounts = replace(clause, operator=clause.operator.positive, values=tuple(match["amount"] for match in money))
        tests = [(value_test(attribute, amounts.operator, match["amount"]), match["code"].upper()) for match in money]

        def admits(record: Record) -> bool:
            elements = [element for element in elements_of(record.data.get(attribute.slug)) if isinstance(element, Mapping)]
            is_one = any(test(element) and code in parts_of(attribute, element, "currency") for element in elements for test, code in tests)
            return is_one is not clause.operator.is_negation

        local = RecordFilter(local_conditions=(LocalCondition(admits),))
        return local if clause.operator.is_negation else self._plain(amounts, attributes) & local

    def _check_possible(self, clause: Clause, attribute: Attribute) -> None:
        """Warn about a value that no record can have."""
        for value in clause.values:
            if not value:
                continue
            if attribute.type == AttributeType.REFERENCE and not is_uuid(value) and clause.is_exact:
                raise self._takes_an_id(attribute, value)
            if attribute.type == AttributeType.SELECT and attribute.options and value not in attribute.options:
                options = attribute.options
                listed = ", ".join(options[:SHOWN_OPTIONS]) + (", ..." if len(options) > SHOWN_OPTIONS else "")
                meant = nearest(value, options)
                self.context.doubt(f"{value!r} is no option of {attribute.slug} ({listed})", f"did you mean {meant}?" if meant else None)

    def _named_id(self, attribute: Attribute, clause: Clause, value: str) -> str:
        """Return the id of the only referenced record with this name. Raises UsageError for none and, naming them, for several."""
        target = attribute.target_object_id
        attributes = known_attributes(self.context.directory, target, self.context.tell) if target else None
        slugs = [attribute.slug for attribute in attributes or ()]
        naming = next((slug for slug in NAMES if slug in slugs), None)
        if target is None or attributes is None or naming is None:
            raise self._takes_an_id(attribute, value)
        named = FilterReader(self.context, target).read_clause(Clause(naming, Operator.EQUALS, (value,)))
        query = RecordQuery(self.context, target, named, purpose=f"to look up {attribute.slug}")
        records = [record for record in next(query.pages(SHOWN_OPTIONS)).items if query.meets(record)]
        if not records:
            raise self._takes_an_id(attribute, value)
        if len(records) > 1:
            ids = [record.id for record in records]
            raise UsageError(
                f"{clause.target}: several records are named {value!r}: {', '.join(ids)}",
                hint=f"--filter '{clause.target}={ids[0]}' names one by its id",
                code="ambiguous_record",
                details={"ids": ids},
            )
        return records[0].id

    def _takes_an_id(self, attribute: Attribute, value: str) -> UsageError:
        """Return an error that shows the condition on the address or domain of the referenced records, or on a part of their name."""
        target = attribute.target_object_id
        attributes = known_attributes(self.context.directory, target, self.context.tell) if target else None
        texts = [attribute for attribute in attributes or () if attribute.type in (AttributeType.TEXT, AttributeType.EMAIL)]
        unique = next((attribute.slug for attribute in texts if attribute.is_unique), "name")
        is_name = any(attribute.slug == "name" for attribute in texts) and not ("." in value or "@" in value)
        example = f"{attribute.slug}.name~{value}" if is_name else f"{attribute.slug}.{unique}={value}"
        return UsageError(
            f"{attribute.slug} is a reference: it takes the id or the name of a record, and none is named {value!r}",
            hint=f"--filter '{example}' finds those whose {attribute.slug} has it",
            code="not_an_id",
            details={"example": example},
        )

    def _check_alternatives(self, clause: Clause, attribute: Attribute, attributes: Mapping[str, Attribute]) -> None:
        """Refuse `stage=won or stage=lost`. A text attribute may hold such words, so crmctl only warns there."""
        if clause.is_exact or clause.is_list:
            return
        slugs = "|".join(re.escape(slug) for slug in sorted(attributes, key=len, reverse=True))
        joined = re.search(
            rf"\s+(or|and|\|\||&&)\s+((?:{slugs})(?:\.\w+)?)\s*(?:{_SIGN}|\s(?:{_OPERATOR_WORDS})\b)", clause.value, re.IGNORECASE
        )
        if joined is None:
            return
        first = clause.value[: joined.start()]
        others = re.findall(
            rf"{re.escape(attribute.slug)}\s*=\s*(.+?)(?=\s+(?:or|\|\|)\s|\Z)", clause.value[joined.start() :], re.IGNORECASE
        )
        listed = f"--filter '{attribute.slug} in {','.join([first, *others] if others else [first, '...'])}'"
        is_or = joined[1].lower() in ("or", "||")
        form = listed if is_or else "repeat --filter: all conditions must hold"
        problem = f"a filter has no {joined[1]!r}: {attribute.slug} would be compared with {clause.value!r}"
        if type_of(attribute.type).family is Family.TEXT:  # every text is possible
            self.context.warn(f"{problem}; {form}")
        else:
            raise UsageError(problem, hint=form, code="bad_filter")


def text_search(reader: FilterReader, text: str) -> RecordFilter:
    """Return the filter of records with this text in any text attribute. Raises UsageError without a text or a text attribute."""
    attributes = [
        attribute for attribute in (reader.attributes or {}).values() if type_of(attribute.type).family in (Family.TEXT, Family.CHOICE)
    ]
    possible = [
        attribute
        for attribute in attributes
        if attribute.type != AttributeType.SELECT or any(map(value_test(attribute, Operator.CONTAINS, text), attribute.options))
    ]
    if not text.strip() or not attributes:
        raise UsageError("there is nothing to search for" if attributes else f"no text attribute of {reader.object_name} is known")
    if not possible:
        return RecordFilter(is_impossible=True)
    conditions = tuple(Condition(attribute.slug, Operator.CONTAINS, text) for attribute in possible)
    return RecordFilter(local_conditions=(any_of(conditions, reader.attributes or {}),))


Related = Callable[[str, str | None, Attribute], ListOrder]


def list_order(
    sort: str | None, order: str | None, attributes: Callable[[], Mapping[str, Attribute] | None], related: Related | None = None
) -> ListOrder:
    """Return the order of --sort and --order. `attributes` is called only for orders that the service does not support; `related`
    returns the order by a field of a referenced record, such as company.name.

    Raises UsageError, which lists the attributes, for an unknown one.
    """
    if sort is None or sort in SORTS:
        return ListOrder(SORTS[sort] if sort else None, order)
    by_slug = attributes() or {}
    slug, _, part = sort.partition(".") if sort not in by_slug else (sort, "", "")
    attribute = by_slug.get(slug)
    if attribute is not None and part and attribute.type == AttributeType.REFERENCE and related is not None:
        return related(sort, order, attribute)
    if attribute is None or (part and attribute.type not in COMPOSITE_TYPES):
        signed = re.fullmatch(r"([-+]?)([^:\s]+?)(?:[:\s]+(asc|desc))?", sort.lower())
        if signed is not None and (signed[1] or signed[3]) and signed[2] in {*SORTS, *by_slug}:
            meant = f"--sort {signed[2]} --order {signed[3] or ('desc' if signed[1] == '-' else 'asc')}"
        else:
            meant = did_you_mean(sort, [*SORTS, *by_slug])
        valid = f"created_at, updated_at, or an attribute: {', '.join(by_slug)}" if by_slug else "created_at or updated_at"
        raise UsageError(f"--sort must be {valid}, not {sort!r}", hint=meant or None, code="unknown_attribute")
    return ListOrder(sort, order or "asc", key=_key(attribute, part))


def _key(attribute: Attribute, part: str) -> Callable[[Record], Any]:
    as_plain = plain_part(attribute, part, attribute.slug)

    def key(record: Record) -> Any:
        value = record.data.get(attribute.slug)
        keys = keys_of(as_plain, parts_of(attribute, value, part)) if part else keys_of(attribute, value)
        return keys[0] if keys else None

    return key


def values_along(value: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path of nested objects and lists, none that is empty."""
    head, _, rest = path.partition(".")
    for element in elements_of(value):
        if not path:
            yield from () if element in ("", {}) else (element,)
        elif isinstance(element, Mapping):
            yield from values_along(element.get(head), rest)
