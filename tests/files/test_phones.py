"""Phone numbers of a file: E.164 or a finding, never a guess at the country."""

from __future__ import annotations

import pytest

from crmctl.errors import UsageError
from crmctl.files.cell_values import ValueOptions, check_region
from crmctl.files.mapping import MappingOptions, build_mapping
from crmctl.files.payloads import RowBuilder
from crmctl.files.validation import validate
from crmctl.models.findings import Finding, Severity
from tests.support.bulkfiles import attribute, source_of
from tests.support.sheetreading import convert

PHONE = attribute("phone", "phone_number")


def sent(text, region=None, **options):
    """Return the wire value, or the code of the finding."""
    value = convert(text, PHONE, ValueOptions(default_region=region, **options))
    return value.code if isinstance(value, Finding) else value


@pytest.mark.parametrize(
    ("text", "region", "wire"),
    [
        ("+44 20 7946 0958", None, "+442079460958"),
        ("+44 (0)20 7946-0958", None, "+442079460958"),
        (" +44.20.7946.0958 ", "US", "+442079460958"),
        ("020 7946 0958", "GB", "+442079460958"),
        ("0044 20 7946 0958", "GB", "+442079460958"),
        ("011 44 20 7946 0958", "US", "+442079460958"),
        ("1-800-FLOWERS", "US", "+18003569377"),
        ("+44 20 7946 0958 ext. 12", None, "+442079460958;ext=12"),
        ("+39 02 1234 5678", None, "+390212345678"),
        ("020 7946 0958", None, "national_phone"),
        ("0044 20 7946 0958", None, "national_phone"),
        ("020 7946 0958", "none", "020 7946 0958"),
        ("01 42 68 53 00", "GB", "invalid_phone"),
        ("12345", "GB", "invalid_phone"),
        ("+44 20", None, "invalid_phone"),
        ("+44 20 7946 0958 0000", None, "invalid_phone"),
        ("+999 123456", None, "invalid_phone"),
        ("+44 20 7946 0958 / +44 20 7946 0959", None, "invalid_phone"),
        ("nobody", "GB", "invalid_phone"),
        ("1.23E+11", "GB", "spreadsheet_number"),
        ("1.23E+11", "none", "spreadsheet_number"),
    ],
)
def test_a_number_is_sent_as_e164_or_not_at_all(text, region, wire):
    assert sent(text, region) == wire


def test_the_form_of_existing_records_is_followed():
    assert sent("+44 20 7946 0958", samples=({"phone": "020"},)) == "+442079460958"
    parted = ({"phone": {"countryCode": "GB", "phoneNumber": "1", "ext": ""}},)
    assert sent("+44 20 7946 0958 x12", samples=parted) == {"phoneNumber": "+442079460958", "ext": "12"}
    assert sent("+44 20 7946 0958 x12", samples=({"phone": {"number": "1"}},)) == {"number": "+442079460958;ext=12"}
    assert sent("+44 20 7946 0958", samples=({"phone": {"unheard": "1"}},)) == "+442079460958"


def test_an_object_in_a_cell_and_a_list_of_numbers():
    assert sent('{"number": "020"}') == {"number": "020"}
    several = attribute("phones", "phone_number", isList=True)
    assert convert("+44 20 7946 0958; 020 7946 0959", several, ValueOptions(default_region="GB")) == ["+442079460958", "+442079460959"]


def test_every_bad_number_is_named_with_its_line_and_value_and_a_doubtful_one_is_sent_with_a_warning(tmp_path):
    source = source_of(tmp_path, "phone\n+1 555 0100\n+44 20\n020 7946 0958\n+1 555 0100\n")
    heard = []
    builder = RowBuilder(build_mapping(source.header, [PHONE], MappingOptions()), [PHONE], ValueOptions())
    report = validate(source, builder, heard.append)
    assert [(finding.code, finding.severity, finding.first_line, finding.value) for finding in heard] == [
        ("unassigned_phone", Severity.WARNING, 2, "+1 555 0100"),
        ("invalid_phone", Severity.ERROR, 3, "+44 20"),
        ("national_phone", Severity.ERROR, 4, "020 7946 0958"),
        ("unassigned_phone", Severity.WARNING, 5, "+1 555 0100"),
    ]
    assert "--default-region" in heard[2].hint
    assert (report.valid, report.rejected) == (2, 2)


def test_a_part_keeps_its_text_but_never_a_spreadsheets_form(tmp_path):
    source = source_of(tmp_path, "phone.countryCode,phone.number\n44,020 7946\n44,4.4E+11\n")
    heard = []
    kept = []
    mapping = build_mapping(source.header, [PHONE], MappingOptions())
    validate(source, RowBuilder(mapping, [PHONE], ValueOptions()), heard.append, kept.append)
    assert kept[0].data == {"phone": {"countryCode": "44", "number": "020 7946"}}
    assert [(finding.code, finding.first_line) for finding in heard] == [("spreadsheet_number", 3)]


def test_a_region_is_checked_before_anything_is_read():
    assert (check_region("gb"), check_region("NONE"), check_region(None)) == ("GB", "none", None)
    with pytest.raises(UsageError, match="no region 'UK'"):
        check_region("UK")
