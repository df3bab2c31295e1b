"""Values from a closed set (checkbox, select), references to records, and the elements of a list attribute."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.numbers import read_number
from crmctl.service.values.text import Invalid, require_text

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)

TRUE, FALSE = "true", "false"


def canonical_uuid(value: Any) -> str | None:
    """The lower-case form of a UUID in its usual spelling, None for anything else."""
    return value.lower() if isinstance(value, str) and UUID.fullmatch(value) else None


def read_checkbox(value: Any) -> str:
    if value is True:
        return TRUE
    if value is False:
        return FALSE
    raise Invalid("must be true or false")


def read_select(value: Any, attribute: StoredAttribute) -> str:
    if isinstance(value, str) and value in attribute.option_set:
        return value
    shown = ", ".join(attribute.options[:20]) + (", ..." if len(attribute.options) > 20 else "")
    raise Invalid(f"must be one of: {shown}")


def read_reference(value: Any) -> str:
    """The canonical id; whether the record exists is for the storage to say."""
    record_id = canonical_uuid(value)
    if record_id is None:
        raise Invalid("must be the id (UUID) of a record")
    return record_id


def read_element(value: Any) -> str:
    """One element of a list attribute: a string, or a number in its JSON spelling."""
    if isinstance(value, str):
        return require_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Invalid("must hold strings or numbers only")
    read_number(value)
    return jsontext.dumps(value)
