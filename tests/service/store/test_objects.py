"""Objects and attributes: rules of creation, fixed fields and effects of deletion."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, Conflict, Forbidden, NotFound
from crmctl.service.store import members, objects, records
from tests.service.store.conftest import Store, new_id


def slugs(store: Store) -> list[str]:
    return [crm_object["slug"] for crm_object in store.read(objects.list_objects)]


def test_a_new_organisation_has_an_owner_and_every_type_of_attribute(store: Store) -> None:
    assert not store.write(members.initialise)
    found = store.read(members.get_organisation)
    assert found is not None
    assert set(found) == {"id", "name", "createdAt"}
    assert slugs(store) == ["people", "companies", "deals"]
    types = set()
    for slug in slugs(store):
        wire = store.read(lambda tx, slug=slug: objects.get_object(tx, store.standard(slug)))
        assert wire["type"] == "standard"
        assert "organis" not in wire["description"].lower()
        types |= {attribute["type"] for attribute in wire["attributes"]}
        assert sum(attribute["isRequired"] for attribute in wire["attributes"]) == (0 if slug == "people" else 1)
    assert types == {str(kind) for kind in AttributeType}


def test_an_object_in_wire_form(store: Store) -> None:
    made = store.write(
        objects.create_object, objects.NewObject(plural_name="Big Projects", singular_name="Big Project", description="What we build")
    )
    assert made == {
        "id": made["id"],
        "type": "custom",
        "pluralName": "Big Projects",
        "singularName": "Big Project",
        "description": "What we build",
        "slug": "big_projects",
        "isActive": True,
        "createdAt": "2027-01-15T08:00:00.000000Z",
        "updatedAt": "2027-01-15T08:00:00.000000Z",
    }
    assert store.read(lambda tx: objects.get_object(tx, made["id"].upper())) == made | {"attributes": []}
    assert store.read(lambda tx: objects.find_object_by_slug(tx, "big_projects")) == made
    assert store.read(lambda tx: objects.find_object_by_slug(tx, "nope")) is None


@pytest.mark.parametrize("slug", ["\0", "a\0b", "\ud800"])
def test_no_object_has_a_slug_that_engines_cannot_hold(store: Store, slug: str) -> None:
    with pytest.raises(BadRequest, match="slug of an object"):
        store.read(lambda tx: objects.id_of_slug(tx, slug, "object"))


@pytest.mark.parametrize("slug", ["", "Upper", "a b", "a[b]", "-a", "ä", "x" * 65, "11111111-1111-4111-8111-111111111111", 5, "a\n"])
def test_an_impossible_slug_is_refused(store: Store, slug: Any) -> None:
    with pytest.raises(BadRequest, match="slug"):
        store.write(objects.create_object, objects.NewObject(plural_name="Things", slug=slug))
    with pytest.raises(BadRequest, match="slug"):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(name="x", type="text", slug=slug))


@pytest.mark.parametrize("name", ["", "  ", None, 3, "x" * 201, "a\x00b"])
def test_an_impossible_name_is_refused(store: Store, name: Any) -> None:
    with pytest.raises(BadRequest, match="pluralName"):
        store.write(objects.create_object, objects.NewObject(plural_name=name))
    with pytest.raises(BadRequest, match="name"):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(name=name, type="text"))


def test_slugs_are_unique(store: Store) -> None:
    things = store.object("things", {"slug": "field", "type": "text"})
    with pytest.raises(Conflict, match="things"):
        store.write(objects.create_object, objects.NewObject(plural_name="Things"))
    with pytest.raises(Conflict, match="field"):
        store.write(objects.create_attribute, things, objects.NewAttribute(name="Field", type="text"))
    store.object("others", {"slug": "field", "type": "text"})


def test_an_object_can_be_renamed_hidden_and_shown(store: Store) -> None:
    things = store.object("things")
    store.clock.advance(1)
    hidden = store.write(lambda tx, now, **_: objects.update_object(tx, things, {"isActive": False, "pluralName": "Old things"}, now=now))
    assert (hidden["isActive"], hidden["pluralName"]) == (False, "Old things")
    assert hidden["updatedAt"] > hidden["createdAt"]
    assert "things" not in slugs(store)
    assert store.create(things)["objectId"] == things
    store.write(lambda tx, now, **_: objects.update_object(tx, things, {"isActive": True}, now=now))
    assert "things" in slugs(store)
    for wrong in ({"pluralName": ""}, {"description": 5}):
        with pytest.raises(BadRequest, match=next(iter(wrong))):
            store.write(lambda tx, now, wrong=wrong, **_: objects.update_object(tx, things, wrong, now=now))


def test_standard_objects_are_fixed_but_not_their_attributes(store: Store) -> None:
    people = store.standard("people")
    with pytest.raises(Forbidden):
        store.write(lambda tx, now, **_: objects.update_object(tx, people, {"description": "x"}, now=now))
    with pytest.raises(Forbidden):
        store.engine.write(lambda tx: objects.delete_object(tx, people))
    made = store.write(objects.create_attribute, people, objects.NewAttribute(name="Shoe size", type="number"))
    assert made["slug"] == "shoe_size"
    store.engine.write(lambda tx: objects.delete_attribute(tx, people, made["id"]))


def test_deleting_an_object_leaves_nothing(store: Store) -> None:
    things = store.object("things", {"slug": "code", "type": "text", "is_unique": True})
    store.write(
        objects.create_attribute, things, objects.NewAttribute(name="Parent", type="reference", config={"allowed_object_id": things})
    )
    store.create(things, code="a")
    before = store.rows("SELECT count(*) FROM unique_value")[0][0]
    other = store.object("others", {"slug": "thing", "type": "reference", "config": {"allowed_object_id": things}})
    with pytest.raises(Conflict, match="thing"):
        store.engine.write(lambda tx: objects.delete_object(tx, things))
    store.engine.write(lambda tx: objects.delete_attribute(tx, other, store.attribute(other, "thing")["id"]))
    store.engine.write(lambda tx: objects.delete_object(tx, things))
    assert before == 1
    for call in (objects.get_object, objects.list_attributes, objects.delete_object):
        with pytest.raises(NotFound):
            store.engine.write(lambda tx, call=call: call(tx, things))
    again = store.object("things", {"slug": "code", "type": "text", "is_unique": True})
    assert store.create(again, code="a")["data"] == {"code": "a"}
    assert store.total(again) == 1


@pytest.mark.parametrize(
    ("type", "config"),
    [
        ("select", None),
        ("select", {}),
        ("select", {"options": []}),
        ("select", {"options": "ab"}),
        ("select", {"options": ["a", "a"]}),
        ("select", {"options": ["a", 1]}),
        ("select", {"options": ["a", ""]}),
        ("select", {"options": ["a"], "more": 1}),
        ("reference", None),
        ("reference", {"allowed_object_id": "people"}),
        ("reference", {"allowed_object_id": "11111111-1111-4111-8111-111111111111"}),
        ("reference", {"options": ["a"]}),
        ("text", {"options": ["a"]}),
        ("text", [1]),
    ],
)
def test_config_belongs_to_its_type(store: Store, type: str, config: Any) -> None:
    with pytest.raises(BadRequest, match="config"):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(name="x", type=type, config=config))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"type": "Text"}, "type"),
        ({"type": None}, "type"),
        ({"type": ["a"]}, "type"),
    ],
)
def test_wrong_attributes_are_refused_by_name(store: Store, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(**{"name": "x", "type": "text"} | arguments))


@pytest.mark.parametrize(
    ("name", "slug"),
    [("Größe (cm)", "groe_cm"), ("Ünïcode", "unicode"), ("A--B", "a_b"), ("名前", "attribute_1"), ("Created by", "created_by")],
)
def test_a_slug_is_derived_from_the_name(store: Store, name: str, slug: str) -> None:
    made = store.write(objects.create_attribute, store.object("things"), objects.NewAttribute(name=name, type="text"))
    assert (made["slug"], made["name"], made["displayOrder"]) == (slug, name, 1)


def test_objects_without_latin_names_have_slugs_of_their_own(store: Store) -> None:
    made = [store.write(objects.create_object, objects.NewObject(plural_name=name))["slug"] for name in ("案件", "製品")]
    assert made == ["object_4", "object_5"]


def test_slugs_of_record_fields_are_reserved(store: Store) -> None:
    with pytest.raises(BadRequest, match="created_at"):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(name="Created at", type="date"))
    with pytest.raises(BadRequest, match="id"):
        store.write(objects.create_attribute, store.standard("people"), objects.NewAttribute(name="Number", slug="id", type="text"))


def test_only_the_name_of_an_attribute_can_change(store: Store) -> None:
    things = store.object("things", {"slug": "field", "type": "text"})
    before = store.attribute(things, "field")
    store.clock.advance(1)
    after = store.write(lambda tx, now, **_: objects.update_attribute(tx, things, before["id"], {"name": "Better"}, now=now))
    assert {key for key in before if before[key] != after[key]} == {"name", "updatedAt"}
    with pytest.raises(NotFound):
        store.write(lambda tx, now, **_: objects.update_attribute(tx, store.standard("people"), before["id"], {"name": "x"}, now=now))


def test_deleting_an_attribute_deletes_its_values(store: Store) -> None:
    things = store.object(
        "things",
        {"slug": "code", "type": "text", "is_unique": True},
        {"slug": "note-2", "type": "text"},
        {"slug": "size", "type": "number"},
    )
    made = [store.create(things, **{"code": f'"code": {n}', "note-2": '{"code":1}', "size": 10**30 + n}) for n in range(3)]
    blank = store.create(things, code="", size=1)
    for slug in ("code", "note-2"):
        store.engine.write(lambda tx, slug=slug: objects.delete_attribute(tx, things, store.attribute(things, slug)["id"]))
    assert [record["data"] for record in store.find(things)] == [{"size": 10**30 + n} for n in range(3)] + [{"size": 1}]
    assert [record["updatedAt"] for record in store.find(things)] == [record["updatedAt"] for record in (*made, blank)]
    assert store.rows("SELECT * FROM unique_value") == []
    with pytest.raises(BadRequest, match="code"):
        store.create(things, code="x")
    store.write(objects.create_attribute, things, objects.NewAttribute(name="Code", slug="code", type="number", is_unique=True))
    again = store.create(things, code=1, size=2)
    assert store.find(things, ("code", "isNotEmpty", "true")) == [again]
    assert store.find(things, ("size", "equals", str(10**30 + 1)))[0]["id"] == made[1]["id"]
    store.write(records.update_record, things, made[0]["id"], {"code": 2})


def test_the_number_of_attributes_is_limited(store: Store) -> None:
    things = store.object("things")

    def fill(tx: Any, **named: Any) -> None:
        for n in range(objects.MAX_ATTRIBUTES):
            objects.create_attribute(tx, things, objects.NewAttribute(name=f"a{n}", type="text"), **named)

    store.write(fill)
    assert store.create(things, a0="x", **{f"a{objects.MAX_ATTRIBUTES - 1}": "y"})["data"]["a0"] == "x"
    with pytest.raises(BadRequest, match="at most"):
        store.write(objects.create_attribute, things, objects.NewAttribute(name="one more", type="text"))
    with pytest.raises(NotFound):
        store.write(objects.create_attribute, new_id(), objects.NewAttribute(name="x", type="text"))
