"""What the texts of --filter mean for an object: parts, references, options, moments. What is certainly a mistake is refused here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from crmctl.client.queries.moment_bounds import moment_filter, moment_value
from crmctl.client.queries.parts import any_of, part_filter
from crmctl.client.queries.query_context import QueryContext
from crmctl.client.queries.record_filter import RecordFilter
from crmctl.client.queries.record_query import RecordQuery
from crmctl.client.queries.related import related_filter
from crmctl.client.record_lists import known_attributes
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import COMPARISONS, value_test
from crmctl.models.composites import COMPOSITE_TYPES, Form, knows_part, learn_form, unknown_part
from crmctl.models.filters import FIELDS_OF_EVERY_RECORD, SIGNS, Clause, Condition, Operator, check_slugs, mistaken_value, parse_clause
from crmctl.models.folded_text import fold
from crmctl.models.ids import is_uuid
from crmctl.models.nearest import nearest

SHOWN_OPTIONS = 20
TIMES = {"createdAt": "created_at", "updatedAt": "updated_at", "created_at": "created_at", "updated_at": "updated_at"}
_EQUALITY = frozenset({Operator.EQUALS, Operator.NOT_EQUALS})
_SIGN = "|".join(re.escape(sign) for sign in SIGNS)
_OPERATOR_WORDS = "|".join((*map(str, Operator), r"not\s+in", "in"))


class FilterReader:
    """Texts into filters, for one object."""

    def __init__(self, context: QueryContext, object_name: str) -> None:
        self.context = context
        self.object_name = object_name
        self._known: dict[str, Attribute] | None = None
        self._is_known = False

    @property
    def attributes(self) -> Mapping[str, Attribute] | None:
        """By slug; None where the key may not read them."""
        if not self._is_known:
            known = known_attributes(self.context.directory, self.object_name, self.context.tell)
            self._known = {attribute.slug: attribute for attribute in known} if known is not None else None
            self._is_known = True
        return self._known

    def read(self, given: Sequence[str | Condition]) -> RecordFilter:
        """All of them together. Raises UsageError for what is no condition, or can only be a mistake; what look-ups raise."""
        whole = RecordFilter()
        clauses = [
            parse_clause(one) if isinstance(one, str) else Clause(one.slug, one.operator, (one.value,), is_exact=True) for one in given
        ]
        for clause in clauses:
            whole = whole & self.read_clause(clause)
        return whole

    def read_clause(self, clause: Clause) -> RecordFilter:
        """One condition. Raises like read."""
        attributes = self.attributes
        name = TIMES.get(clause.target, clause.target)
        if name in TIMES.values() and clause.target not in (attributes or {}):
            return moment_filter(name, clause, self.context.now)
        if not attributes or clause.target in attributes or clause.target in FIELDS_OF_EVERY_RECORD:
            return self._plain(clause, attributes or {})
        head, dot, rest = clause.target.partition(".")
        attribute = attributes.get(head)
        if attribute is None or not dot:
            check_slugs([Condition(head if attribute is None else clause.target, clause.operator)], [*attributes.values()])
        if attribute is not None and attribute.type == AttributeType.REFERENCE:
            return related_filter(attribute, rest, clause, lambda target, inner: self._ids(attribute, target, inner))
        if attribute is None or attribute.type not in COMPOSITE_TYPES:
            raise UsageError(
                f"{head} is a {attribute.type if attribute else 'plain'} attribute and has no parts, so {clause.target} means nothing",
                hint=f"--filter '{head}=...'",
                code="unknown_attribute",
            )
        self._check_part(attribute, rest)
        return part_filter(attribute, rest, clause)

    def _ids(self, attribute: Attribute, target: str, clause: Clause) -> list[str]:
        """The ids of another object's records that meet a condition."""
        wanted = FilterReader(self.context, target).read_clause(clause)
        query = RecordQuery(self.context, target, wanted, purpose=f"to look up {attribute.slug}")
        ids = list(dict.fromkeys(record.id.lower() for record in query.records()))
        if not ids:
            self.context.warn(
                f"no record that {attribute.slug} could name has {clause.target} {clause.operator} {', '.join(clause.values)}"
            )
        return ids

    def _check_part(self, attribute: Attribute, part: str) -> None:
        """Raises UsageError for a part that values do not have; other than the usual ones are looked for in existing records."""
        if part and knows_part(attribute, part, Form()):
            return
        directory, crm = self.context.directory, self.context.crm
        page = directory.with_object(self.object_name, lambda target: crm.list_records(target, limit=100))
        form = learn_form(attribute, [record.data for record in page.items])
        if not part or not knows_part(attribute, part, form):
            raise unknown_part(attribute, part, form)

    def _plain(self, clause: Clause, attributes: Mapping[str, Attribute]) -> RecordFilter:
        """A condition on the value of an attribute, which the service decides."""
        attribute = attributes.get(clause.target)
        values = clause.values
        if (mistaken := mistaken_value(clause)) is not None:
            self.context.warn(mistaken)
        if attribute is not None:
            self._check_alternatives(clause, attribute, attributes)
            if clause.operator in _EQUALITY:
                self._check_possible(clause, attribute)
            if attribute.type == AttributeType.DATE and not clause.is_exact and clause.operator in _EQUALITY | COMPARISONS:
                values = tuple(moment_value(value, self.context.now) for value in values)
        conditions = tuple(Condition(clause.target, clause.operator, value) for value in values)
        if len(conditions) == 1 or clause.operator is not Operator.EQUALS:
            return RecordFilter(conditions, needs_body=len(conditions) > 1)
        known = dict(attributes)
        known.setdefault(clause.target, Attribute(id="", slug=clause.target))
        single = attribute is not None and not attribute.is_list and attribute.type != AttributeType.LIST
        is_disjoint = single and len({fold(value) for value in values}) == len(values)
        return RecordFilter(choices=(any_of(conditions, known, is_disjoint=is_disjoint),))

    def _check_possible(self, clause: Clause, attribute: Attribute) -> None:
        """Say of a value that no record can have that it is none."""
        for value in clause.values:
            if not value:
                continue
            if attribute.type == AttributeType.REFERENCE and not is_uuid(value):
                raise self._takes_an_id(attribute, clause, value)
            if attribute.type == AttributeType.SELECT and attribute.options and value not in attribute.options:
                options = attribute.options
                listed = ", ".join(options[:SHOWN_OPTIONS]) + (", ..." if len(options) > SHOWN_OPTIONS else "")
                meant = nearest(value, options)
                self.context.doubt(f"{value!r} is no option of {attribute.slug} ({listed})", f"did you mean {meant}?" if meant else None)

    def _takes_an_id(self, attribute: Attribute, clause: Clause, value: str) -> UsageError:
        example = f"{attribute.slug}.{self._naming_attribute(attribute)}={value}"
        return UsageError(
            f"{attribute.slug} is a reference: it takes the id of a record, not {value!r}",
            hint=f"--filter '{example}' finds those whose {attribute.slug} has it",
            code="not_an_id",
            details={"example": example},
        )

    def _naming_attribute(self, attribute: Attribute) -> str:
        """The attribute of the other object that people know it by."""
        target = attribute.target_object_id
        known = known_attributes(self.context.directory, target, self.context.tell) if target else None
        unique = [each for each in known or () if each.is_unique and each.type in (AttributeType.TEXT, AttributeType.EMAIL)]
        return next((each.slug for each in unique), "name")

    def _check_alternatives(self, clause: Clause, attribute: Attribute, attributes: Mapping[str, Attribute]) -> None:
        """Refuse `stage=won or stage=lost`; a text may hold such words, so that there it is only said how they were understood."""
        if clause.is_exact or clause.is_list:
            return
        slugs = "|".join(re.escape(slug) for slug in sorted(attributes, key=len, reverse=True))
        found = re.search(
            rf"\s+(or|and|\|\||&&)\s+((?:{slugs})(?:\.\w+)?)\s*(?:{_SIGN}|\s(?:{_OPERATOR_WORDS})\b)", clause.value, re.IGNORECASE
        )
        if found is None:
            return
        first = clause.value[: found.start()]
        others = re.findall(
            rf"{re.escape(attribute.slug)}\s*=\s*(.+?)(?=\s+(?:or|\|\|)\s|\Z)", clause.value[found.start() :], re.IGNORECASE
        )
        listed = f"--filter '{attribute.slug} in {','.join([first, *others] if others else [first, '...'])}'"
        is_or = found[1].lower() in ("or", "||")
        form = listed if is_or else "repeat --filter: all conditions must hold"
        problem = f"a filter has no {found[1]!r}: {attribute.slug} would be compared with {clause.value!r}"
        if is_textual(attribute):
            self.context.warn(f"{problem}; {form}")
        else:
            raise UsageError(problem, hint=form, code="bad_filter")


def is_textual(attribute: Attribute) -> bool:
    """Whether values are free text, so that no text can be a mistake."""
    return attribute.type not in (
        AttributeType.SELECT,
        AttributeType.REFERENCE,
        AttributeType.NUMBER,
        AttributeType.CURRENCY,
        AttributeType.DATE,
        AttributeType.CHECKBOX,
    )


def text_search(reader: FilterReader, text: str) -> RecordFilter:
    """Records with this text in any text attribute. Raises UsageError where there is none, or where the attributes are not known."""
    attributes = [each for each in (reader.attributes or {}).values() if is_textual(each) or each.type == AttributeType.SELECT]
    possible = [each for each in attributes if each.type != AttributeType.SELECT or _may_hold(each, text)]
    if not text.strip() or not attributes:
        raise UsageError("there is nothing to search for" if attributes else f"no text attribute of {reader.object_name} is known")
    if not possible:
        return RecordFilter(is_impossible=True)
    conditions = tuple(Condition(each.slug, Operator.CONTAINS, text) for each in possible)
    return RecordFilter(choices=(any_of(conditions, reader.attributes or {}),))


def _may_hold(attribute: Attribute, text: str) -> bool:
    return any(value_test(attribute, Operator.CONTAINS, text)(option) for option in attribute.options)
