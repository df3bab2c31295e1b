"""The usual parts of composite values by type, as plain data: completion reads them too, and waits for no model."""

from __future__ import annotations

PART_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "name": {
        "title": ("prefix", "salutation"),
        "first": ("firstname", "given", "givenname", "forename"),
        "middle": ("middlename",),
        "last": ("lastname", "family", "familyname", "surname"),
        "suffix": (),
    },
    "address": {
        "street": ("street1", "line1", "address1", "addressline1", "streetaddress"),
        "street2": ("line2", "address2", "addressline2"),
        "city": ("town", "locality"),
        "state": ("region", "province", "county"),
        "postalCode": ("zip", "zipcode", "postcode"),
        "country": ("countrycode",),
    },
    "currency": {"amount": ("value",), "currency": ("currencycode", "code")},
    "phone_number": {
        "number": ("phone", "phonenumber", "value", "e164", "originalphonenumber", "primaryphonenumber"),
        "countryCode": ("country",),
        "extension": ("ext",),
    },
}
"""Part names in the order people write them, each with other spellings of the same part (folded)."""
