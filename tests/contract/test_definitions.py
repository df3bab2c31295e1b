"""Definitions files loaded in this process; a bad one is refused as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.service.context import ServiceSettings, new_id, open_data
from crmctl.service.definitions.definitions_file import dump_sections, load_document, parse_document
from crmctl.service.faults import Fault
from crmctl.values import yaml_text
from tests.support.clock import FakeClock

BAD = [
    ("objects: [", "not YAML"),
    ("just words", "sections"),
    ("people: []", "people"),
    ("members: [{name: A}]", "members[0].email is required"),
    ("members: [{name: A, email: a@b.c}, {name: B, email: a@b.c}]", "a@b.c twice"),
    ("members: []\nmembers: []", "there twice"),
    ("objects: [{slug: x, pluralName: X, attributs: []}]", "objects[0].attributs"),
    ("objects: [{slug: x, pluralName: X, attributes: [{name: A, slug: a, type: words}]}]", "attribute x.a: type"),
    ("objects: [{slug: x, pluralName: X, attributes: [{name: A, slug: a, type: reference, config: {allowed_object: y}}]}]", "'y'"),
    ("objects: [{slug: people, pluralName: Humans}]", "object people"),
    (
        "objects: [{slug: people, pluralName: People, attributes: [{name: Email, slug: email, type: text}]}]",
        "people.email: type cannot be changed",
    ),
    ("reports: [{name: R, object: people, limit: .inf}]", "reports[0].limit"),
    ("reports: [{name: R, object: people, 1: x}]", "reports[0] has the key 1"),
    ("reports: [{name: R, object: people, columns: !!set {a, b}}]", "reports[0].columns"),
    ("members: &a [*a]", "nested too deeply"),
    ("reports: [{name: R, object: nothing}]", "report R: object"),
    ("workflows: [{name: W}]", "workflows[0].trigger is required"),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_a_bad_file_loads_nothing(tmp_path: Path, text: str, says: str) -> None:
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    before = engine.read(dump_sections)
    good_first = "" if text.startswith(("members", "objects", "just")) else "members: [{name: New, email: new@example.com}]\n"
    with pytest.raises(Fault) as refused:
        load_document(engine, parse_document(good_first + text), clock=clock, ids=new_id)
    assert says in refused.value.message
    assert engine.read(dump_sections) == before
    engine.close()


def test_a_dump_is_readable_yaml(tmp_path: Path) -> None:
    engine = open_data(ServiceSettings(data_dir=tmp_path), FakeClock())
    text = yaml_text.dumps(engine.read(dump_sections))
    engine.close()
    assert "allowed_object: companies" in text
    assert parse_document(text).objects[0].slug == "people"


def test_a_file_can_deactivate_an_attribute_and_dumps_show_it(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    text = "objects: [{slug: things, pluralName: Things, attributes: [{name: Fax, slug: fax, type: text, isActive: false}]}]"

    def loaded(text: str) -> dict[str, int]:
        return load_document(engine, parse_document(text), clock=clock, ids=new_id)["attributes"]

    assert loaded(text) == {"created": 1, "updated": 0, "unchanged": 0}
    assert loaded(text) == {"created": 0, "updated": 0, "unchanged": 1}
    dumped = yaml_text.dumps(engine.read(dump_sections))
    assert "isActive: false" in dumped
    assert loaded(text.replace("isActive: false", "isActive: true")) == {"created": 0, "updated": 1, "unchanged": 0}
    assert "isActive" not in yaml_text.dumps(engine.read(dump_sections))
    assert loaded(dumped)["updated"] == 1
    assert yaml_text.dumps(engine.read(dump_sections)) == dumped
    engine.close()


def test_members_of_one_file_are_listed_by_address(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    clock.sleep(1)
    addresses = [f"{letter}@example.com" for letter in "dbecafhg"]
    members = ", ".join(f"{{name: X, email: {address}}}" for address in addresses)
    load_document(engine, parse_document(f"members: [{members}]"), clock=clock, ids=new_id)
    listed = [member["email"] for member in engine.read(dump_sections)["members"]]
    engine.close()
    assert listed[1:] == sorted(addresses)


def test_a_file_keeps_images_and_names_it_does_not_mention(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    first = """
    members: [{name: Ada, email: ada@example.com, image: 'https://example.com/ada.png'}]
    objects: [{slug: things, pluralName: Things, attributes: [{name: Fax number, slug: fax, type: text}]}]
    """
    load_document(engine, parse_document(first), clock=clock, ids=new_id)
    second = first.replace(", image: 'https://example.com/ada.png'", ", role: admin").replace("name: Fax number, ", "")
    counts = load_document(engine, parse_document(second), clock=clock, ids=new_id)
    assert (counts["members"]["updated"], counts["attributes"]["unchanged"]) == (1, 1)
    dumped = parse_document(yaml_text.dumps(engine.read(dump_sections)))
    assert [(member.role, member.image) for member in dumped.members if member.name == "Ada"] == [("admin", "https://example.com/ada.png")]
    assert [attribute.name for spec in dumped.objects if spec.slug == "things" for attribute in spec.attributes] == ["Fax number"]
    load_document(engine, parse_document(first.replace("'https://example.com/ada.png'", "null")), clock=clock, ids=new_id)
    assert "ada.png" not in yaml_text.dumps(engine.read(dump_sections))
    engine.close()
