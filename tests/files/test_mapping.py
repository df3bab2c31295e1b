"""Columns to attributes: names, declarations of the user, and refusals before the first row."""

from __future__ import annotations

import pytest

from crmctl.errors import RejectedError, UsageError
from crmctl.files.column_names import Names
from crmctl.files.mapping import MappingOptions, Mode, build_mapping, schema_digest
from tests.support.bulkfiles import attribute

ATTRIBUTES = [
    attribute("name", "name", name="Full name"),
    attribute("email", "email", name="E-mail"),
    attribute("work_email", "email", name="Work Email"),
    attribute("amount", "currency", name="Deal size"),
    attribute("address", "address"),
    attribute("notes"),
    attribute("postal.code"),
    attribute("old", isActive=False),
]


def targets(header, **options):
    return [column.target for column in build_mapping(header, ATTRIBUTES, MappingOptions(**options)).columns]


@pytest.mark.parametrize(
    ("header", "target"),
    [
        ("email", "email"),
        ("E-mail", "email"),
        (" EMAIL ", "email"),
        ("Work-Email", "work_email"),
        ("work email", "work_email"),
        ("workEmail", "work_email"),
        ("DEAL SIZE", "amount"),
        ("full_name", "name"),
        ("name.first", "name.first"),
        ("Full Name.Last", "name.Last"),
        ("address.city", "address.city"),
        ("postal.code", "postal.code"),
        ("Postal.Code", "postal.code"),
    ],
)
def test_a_header_matches_a_slug_or_a_name(header, target):
    assert targets([header]) == [target]


@pytest.mark.parametrize("header", ["mail", "First Name", "email.first", ".first", "name.", "old", "", "#1"])
def test_uncertain_columns_are_refused(header):
    with pytest.raises(UsageError) as caught:
        build_mapping([header, "notes"], ATTRIBUTES, MappingOptions())
    assert caught.value.code == "unknown_column"
    assert "--ignore-unknown" in caught.value.hint


def test_unknown_columns_are_all_listed_with_the_nearest_attributes():
    with pytest.raises(UsageError, match=r"'emial' \(nearest: email.*'First Name' \(nearest: name.first") as caught:
        build_mapping(["emial", "notes", "First Name"], ATTRIBUTES, MappingOptions())
    assert caught.value.details == {"columns": ["emial", "First Name"]}
    with pytest.raises(UsageError, match=r"'x19', and 10 more$") as caught:
        build_mapping([f"x{place}" for place in range(30)], ATTRIBUTES, MappingOptions())
    assert len(caught.value.details["columns"]) == 30


@pytest.mark.parametrize(
    ("header", "first"),
    [
        ("E-mail Address", "email"),
        ("Home City", "address.city"),
        ("Forename", "name.first"),
        ("Phone", "mobile"),
        ("Phone Number", "mobile"),
        ("Mobile Extension", "mobile.extension"),
        ("Annual Value", None),
        ("Value", None),
    ],
)
def test_a_suggestion_shares_more_than_a_general_word(header, first):
    names = Names([attribute("mobile", "phone_number"), *ATTRIBUTES[:2], ATTRIBUTES[3], ATTRIBUTES[4]])
    assert next(iter(names.nearest(header)), None) == first


@pytest.mark.parametrize("header", ["--", "- -"])
def test_a_column_without_letters_gets_no_suggestion(header):
    """Not even an attribute without a name."""
    with pytest.raises(UsageError) as caught:
        build_mapping([header, "notes"], [*ATTRIBUTES, attribute("nameless", name="")], MappingOptions())
    assert "nearest" not in caught.value.message


def test_ignore_unknown_leaves_columns_out_and_says_so():
    mapping = build_mapping(["notes", "Foo", ""], ATTRIBUTES, MappingOptions(ignore_unknown=True))
    assert [column.target for column in mapping.columns] == ["notes", None, None]
    assert mapping.notes == ["column Foo is left out: no attribute of this name", "column #3 is left out: no attribute of this name"]


def test_a_file_without_a_single_known_column_is_refused_even_so():
    with pytest.raises(UsageError, match="no column matches"):
        build_mapping(["Foo"], ATTRIBUTES, MappingOptions(ignore_unknown=True))


def test_map_declares_columns_by_name_and_position():
    assert targets(["Mail=Work", "x", "Skip me"], map_pairs=("Mail=Work=email", "#2=name.first", "skip_me=")) == [
        "email",
        "name.first",
        None,
    ]
    assert targets(["Pre\u0301nom"], map_pairs=("Pr\u00e9nom=name.first",)) == ["name.first"]
    assert targets(["Notes", "Notes"], map_pairs=("#1=notes", "#2=Full name")) == ["notes", "name"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("map.json", '{"A": "email", "B": null}'),
        ("map.yaml", "A: email\nB: ''\n"),
    ],
)
def test_a_map_file_may_be_json_or_yaml(tmp_path, file, content):
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert targets(["A", "B"], map_file=tmp_path / file) == ["email", None]
    assert targets(["A", "B"], map_file=tmp_path / file, map_pairs=("B=notes",)) == ["email", "notes"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("m.json", "{"),
        ("m.json", '{"A": "email", "A": "notes"}'),
        ("m.json", "[1]"),
        ("m.yaml", "A: [1]"),
        ("m.yaml", "a: b: c"),
        ("m.csv", "column,slug\nA,email\n"),
        ("m.json", '{"Z": "email"}'),
    ],
)
def test_a_wrong_map_file_is_a_usage_error(tmp_path, file, content):
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(UsageError):
        targets(["A"], map_file=tmp_path / file)


REFUSED = {
    "the same header twice": (["email", "notes", "email"], {}, "duplicate_column"),
    "two spellings of one attribute": (["email", "E-mail"], {}, "duplicate_target"),
    "a mapped column and a named one": (["email", "x"], {"map_pairs": ("x=email",)}, "duplicate_target"),
    "one part twice": (["name.first", "Name.First"], {}, "duplicate_target"),
    "a column and a constant": (["email", "notes"], {"set_values": ("email=a@b.c",)}, "duplicate_target"),
    "a map of a missing column": (["email"], {"map_pairs": ("x=notes",)}, "unknown_column"),
    "a map to a missing attribute": (["email", "x"], {"map_pairs": ("x=nowhere",)}, "unknown_attribute"),
    "a map of a name that stands twice": (["x", "x", "email"], {"map_pairs": ("x=notes",)}, "ambiguous_column"),
    "a map without a target": (["email"], {"map_pairs": ("email",)}, "usage"),
    "a position beyond the last": (["email"], {"map_pairs": ("#2=notes",)}, "unknown_column"),
    "an id in create mode": (["email", "x"], {"map_pairs": ("x=id",)}, "usage"),
    "an upsert without ids": (["email"], {"mode": Mode.UPSERT}, "missing_id_column"),
    "an unknown constant": (["email"], {"set_values": ("nope=1",)}, "unknown_attribute"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_and_contradictory_mappings_are_refused(case):
    header, options, code = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        targets(header, **options)
    assert caught.value.code == code


def test_a_name_that_fits_two_attributes_is_refused_unless_it_is_a_slug():
    attributes = [attribute("owner_name", name="Owner"), attribute("owner", name="Owner Name")]
    assert build_mapping(["owner"], attributes, MappingOptions()).columns[0].target == "owner"
    with pytest.raises(UsageError, match="fits several attributes: owner_name, owner"):
        build_mapping(["Owner Name"], attributes, MappingOptions())


def test_the_columns_of_an_export_are_recognised():
    header = ["id", "email", "createdAt", "updated_at", "_row", "_error"]
    create = build_mapping(header, ATTRIBUTES, MappingOptions())
    assert [column.target for column in create.columns] == [None, "email", None, None, None, None]
    assert create.notes == [
        "column id is left out: creating always makes new ids",
        "column createdAt is left out: the service sets it",
        "column updated_at is left out: the service sets it",
    ]
    assert targets(header, mode=Mode.UPSERT) == ["id", "email", None, None, None, None]
    assert targets(["Record", "email"], mode=Mode.UPSERT, map_pairs=("Record=id",)) == ["id", "email"]


def test_a_field_of_records_is_no_attribute_of_a_similar_name_and_the_other_way_round():
    attributes = [attribute("createdat"), attribute("i_d"), attribute("updated", name="Updated at")]
    header = ["id", "i_d", "createdat", "createdAt", "Updated At", "updatedAt"]
    for mode, record_id in ((Mode.CREATE, None), (Mode.UPSERT, "id")):
        columns = build_mapping(header, attributes, MappingOptions(mode=mode)).columns
        assert [column.target for column in columns] == [record_id, "i_d", "createdat", None, "updated", None]
    assert build_mapping(["Created At"], attributes, MappingOptions()).columns[0].target == "createdat"


def test_only_the_columns_of_result_files_are_left_out_silently():
    mapping = build_mapping(["notes", "_error", "_mine", "_x"], [*ATTRIBUTES, attribute("_x")], MappingOptions())
    assert [column.target for column in mapping.columns] == ["notes", None, None, "_x"]
    assert mapping.notes == ["column _mine is left out: names that begin with _ belong to result files"]


def test_a_map_of_a_key_that_json_records_bring_late_is_kept_for_it():
    mapping = build_mapping(["notes"], ATTRIBUTES, MappingOptions(map_pairs=("Mail=email",)), header_complete=False)
    assert mapping.column_of("Mail").target == "email"
    assert mapping.notes == ["--map: the first records have no key 'Mail'"]
    with pytest.raises(UsageError, match="no attribute nowhere"):
        build_mapping(["notes"], ATTRIBUTES, MappingOptions(map_pairs=("Mail=nowhere",)), header_complete=False)


def test_constants_are_typed():
    mapping = build_mapping(["email"], ATTRIBUTES, MappingOptions(set_values=("amount=12.5", "name.first=Ada", "notes:=null")))
    assert mapping.constants == {"amount": 12.5, "name": {"first": "Ada"}, "notes": None}
    with pytest.raises(RejectedError, match="amount: not a number"):
        build_mapping(["email"], ATTRIBUTES, MappingOptions(set_values=("amount=much",)))


def test_the_digest_is_stable_and_tells_mappings_apart():
    def digest(header, **options):
        return build_mapping(header, ATTRIBUTES, MappingOptions(**options)).digest

    assert digest(["email", "notes"]) == digest(["email", "notes"])
    different = [
        digest(["email", "notes"]),
        digest(["notes", "email"]),
        digest(["email", "notes"], map_pairs=("notes=",)),
        digest(["email", "notes"], set_values=("amount=1",)),
        digest(["email", "notes", "id"], mode=Mode.UPSERT),
    ]
    assert len(set(different)) == len(different)
    assert schema_digest(ATTRIBUTES) == schema_digest(list(reversed(ATTRIBUTES)))
    assert schema_digest(ATTRIBUTES) != schema_digest(ATTRIBUTES[1:])


@pytest.mark.parametrize("options", [{}, {"map_pairs": ("x=address.foo",)}, {"set_values": ("address.foo=x",)}])
def test_an_unknown_part_is_refused_with_the_known_ones_unless_records_show_it(options):
    header = ["email", "x" if options else "address.foo"]
    if "set_values" in options:
        header = ["email"]
    with pytest.raises(UsageError) as caught:
        build_mapping(header, ATTRIBUTES, MappingOptions(**options))
    assert "address.postalCode" in f"{caught.value.message} {caught.value.hint}"
    assert build_mapping(header, Names(ATTRIBUTES, [{"address": {"Foo": "x"}}]), MappingOptions(**options))


def test_the_order_of_keys_and_attributes_is_no_change_of_the_schema():
    one, other = ({"options": ["New"], "default": "New"}, {"default": "New", "options": ["New"]})
    schema = schema_digest([attribute("stage", "select", config=one), attribute("notes")])
    assert schema == schema_digest([attribute("notes"), attribute("stage", "select", config=other)])
    assert schema != schema_digest([attribute("stage", "select", config={**one, "default": None}), attribute("notes")])
