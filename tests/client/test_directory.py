"""Slugs to objects and attributes: the number of requests, and stale or broken caches."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from crmctl.client.directory import Directory
from crmctl.client.schema_cache import FRESH_SECONDS
from crmctl.errors import DeniedError, NotFoundError
from tests.client.conftest import Scene
from tests.support.httpserver import Reply

PEOPLE = "11111111-1111-4111-8111-111111111111"
DEALS = "22222222-2222-4222-8222-222222222222"
EMAIL = {"id": "33333333-3333-4333-8333-333333333333", "slug": "email", "type": "email", "displayOrder": 2}
NAME = {"id": "44444444-4444-4444-8444-444444444444", "slug": "name", "type": "name", "displayOrder": 1}
OLD = {"id": "55555555-5555-4555-8555-555555555555", "slug": "fax", "type": "text", "isActive": False}

OBJECTS = Reply(json={"objects": [{"id": PEOPLE, "slug": "people"}, {"id": DEALS, "slug": "deals"}]}, expect="GET /api/v1/objects")
ATTRIBUTES = Reply(json={"attributes": [EMAIL, NAME]}, expect=f"GET /api/v1/objects/{PEOPLE}/attributes")
Play = Callable[..., AbstractContextManager[Scene]]


def directory(here: Scene, cache: Path, profile: str = "default") -> Directory:
    return Directory(here.crm, cache, profile, "https://crm.example", here.clock)


def test_one_request_cold_and_none_warm(scene: Play, tmp_path: Path) -> None:
    with scene(OBJECTS, ATTRIBUTES) as here:
        assert directory(here, tmp_path).object("people").id == PEOPLE
        assert [each.slug for each in directory(here, tmp_path).attributes("people")] == ["name", "email"]
        again = directory(here, tmp_path)
        assert (again.object("deals").id, again.attribute("people", "email").type) == (DEALS, "email")
        assert again.attribute(PEOPLE, EMAIL["id"]).slug == "email"


def test_a_uuid_is_not_looked_up(scene: Play, tmp_path: Path) -> None:
    with scene() as here:
        assert directory(here, tmp_path).object_id(PEOPLE) == PEOPLE


def test_profiles_do_not_share(scene: Play, tmp_path: Path) -> None:
    with scene(OBJECTS, OBJECTS) as here:
        directory(here, tmp_path, "one").object("people")
        directory(here, tmp_path, "two").object("people")


def test_a_new_slug_works_at_once_and_an_unknown_one_is_explained(scene: Play, tmp_path: Path) -> None:
    newer = Reply(json={"objects": [{"id": PEOPLE, "slug": "people"}, {"id": DEALS, "slug": "projects"}]})
    with scene(OBJECTS, newer, newer, newer) as here:
        looked = directory(here, tmp_path)
        looked.object("people")
        assert looked.object("projects").id == DEALS
        with pytest.raises(NotFoundError) as caught:
            looked.object("peopel")
        assert caught.value.hint == "did you mean people?"
        assert int(caught.value.exit_code) == 3
        with pytest.raises(NotFoundError) as caught:
            looked.object("zzz")
        assert caught.value.hint == "valid slugs: people, projects; an inactive object is named by its id"


def test_the_cache_ages(scene: Play, tmp_path: Path) -> None:
    with scene(OBJECTS, OBJECTS) as here:
        directory(here, tmp_path).object("people")
        here.clock.advance(FRESH_SECONDS + 1)
        directory(here, tmp_path).object("people")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"objects": 3}', '{"objects": {"at": "x", "items": []}}', '{"objects": {"at": 1e12, "items": [{}]}}']
)
def test_a_broken_cache_is_an_empty_one(scene: Play, tmp_path: Path, content: str) -> None:
    with scene(OBJECTS, OBJECTS) as here:
        directory(here, tmp_path).object("people")
        (path,) = (tmp_path / "schema").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.write_text(content)
        assert directory(here, tmp_path).object("people").id == PEOPLE


def test_a_cache_that_cannot_be_written_stops_nothing(scene: Play, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text("a file where the folder should be")
    with scene(OBJECTS) as here:
        assert directory(here, tmp_path).object("people").id == PEOPLE


def test_a_cached_id_that_is_gone_is_looked_up_once_more(scene: Play, tmp_path: Path) -> None:
    moved = Reply(json={"objects": [{"id": DEALS, "slug": "people"}]}, expect="GET /api/v1/objects")
    with scene(OBJECTS, Reply(404), moved, Reply(json={"records": []}, expect=f"GET /api/v1/objects/{DEALS}/records")) as here:
        looked = directory(here, tmp_path)
        assert looked.with_object("people", here.crm.list_records).items == []


def test_a_404_about_something_else_is_reported(scene: Play, tmp_path: Path) -> None:
    with scene(OBJECTS, Reply(404), OBJECTS) as here, pytest.raises(NotFoundError):
        directory(here, tmp_path).with_object("people", lambda object_id: here.crm.get_record(object_id, EMAIL["id"]))


def test_attributes_that_are_inactive_or_new_are_found_and_unknown_ones_explained(scene: Play, tmp_path: Path) -> None:
    every = Reply(json={"attributes": [EMAIL, NAME, OLD]})
    with scene(ATTRIBUTES, every, ATTRIBUTES, every) as here:
        looked = directory(here, tmp_path)
        assert looked.attribute(PEOPLE, "fax").id == OLD["id"]
        assert here.server.requests[1].query == [("includeInactive", "true")]
        with pytest.raises(NotFoundError) as caught:
            looked.attribute(PEOPLE, "emial")
        assert caught.value.hint == "did you mean email?"


def test_a_key_without_attributes_read_sees_them_inside_the_object(scene: Play, tmp_path: Path) -> None:
    inside = Reply(json={"object": {"id": PEOPLE, "fields": [EMAIL, OLD]}}, expect=f"GET /api/v1/objects/{PEOPLE}")
    with scene(Reply(403), inside, Reply(403), Reply(json={"id": DEALS})) as here:
        looked = directory(here, tmp_path)
        assert [each.slug for each in looked.attributes(PEOPLE)] == ["email"]
        with pytest.raises(DeniedError):
            looked.attributes(DEALS)


def test_forgetting(scene: Play, tmp_path: Path) -> None:
    with scene(OBJECTS, ATTRIBUTES, ATTRIBUTES, OBJECTS) as here:
        looked = directory(here, tmp_path)
        looked.attributes("people")
        looked.forget(PEOPLE)
        looked.attributes("people")
        looked.forget()
        looked.object("people")
