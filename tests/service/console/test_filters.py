"""Filters and saved views of lists."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import pytest

from crmctl.service.store import preferences
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_pages import NASTY
from tests.service.console.test_records import member
from tests.support.plainpages import PlainReader
from tests.support.service import RunningService
from tests.support.stored_records import add

__all__ = ["member"]


def test_filters_accept_periods_and_names_of_linked_records(service: RunningService, member: Visitor) -> None:
    acme = add(service, "companies", name="Acme")
    now = datetime.fromtimestamp(service.clock.now(), UTC)
    for name, day in (("today", now), ("older", now - timedelta(29)), ("ancient", now - timedelta(400))):
        add(service, "deals", name=name, close_date=day.date().isoformat(), company=acme if name == "today" else None)

    def names(question: str) -> set[str]:
        page = member.get(f"/console/records/deals?column=name&{question}").text
        return set(re.findall(r'<th scope="row"[^>]*><a[^>]*>([^<]*)', page))

    assert names("where=close_date&op=today&value=") == {"today"}
    assert names("where=close_date&op=last30Days&value=") == {"today", "older"}
    assert names("where=created_at&op=today&value=") == {"today", "older", "ancient"}
    assert names("where=created_at&op=yesterday&value=") == set()
    assert names("where=company&op=equals&value=acme") == {"today"}
    assert "Close date is in the last 30 days" in member.get("/console/records/deals?where=close_date&op=last30Days&value=").text
    refused = member.get("/console/records/deals?where=company&op=equals&value=nobody")
    assert (refused.status_code, "Company: no record has this name" in refused.text) == (400, True)


def test_a_day_is_the_whole_day_of_a_moment(service: RunningService, member: Visitor) -> None:
    now = datetime.fromtimestamp(service.clock.now(), UTC)
    add(service, "people", email="ada@example.com")
    days = [(now + timedelta(days)).date().isoformat() for days in (-1, 0, 1)]
    shown = {
        name: [
            "ada@" in member.get(f"/console/records/people/csv?column=email&where=created_at&op={name}&value={day}").text for day in days
        ]
        for name in ("equals", "notEquals", "greaterThan", "greaterThanOrEqual", "lessThan", "lessThanOrEqual")
    }
    assert shown == {
        "equals": [False, True, False],
        "notEquals": [True, False, True],
        "greaterThan": [True, False, False],
        "greaterThanOrEqual": [True, True, False],
        "lessThan": [False, False, True],
        "lessThanOrEqual": [False, True, True],
    }
    assert member.get("/console/records/people?where=created_at&op=equals&value=9999-12-31").status_code == 200


def test_filters_accept_ticked_options_and_parts_of_values(service: RunningService, member: Visitor) -> None:
    for number, (city, status) in enumerate((("Ötz", "new"), ("Berlin", "customer"), ("berlin", "inactive"), (None, "new"))):
        address = {"street": "Berlin Street 1", "city": city} if city else None
        add(service, "people", email=f"{number}@example.com", status=status, address=address)

    def found(question: str) -> list[str]:
        page = member.get(f"/console/records/people?column=email&sort=email&{question}").text
        return re.findall(r'<th scope="row"[^>]*><a[^>]*>(\d)@', page)

    assert found("tick=status:new") == ["0", "3"]
    assert found("tick=status:new&tick=status:customer") == ["0", "1", "3"]
    assert found("where=status&op=equals&value=NEW&tick=status:customer&where=email&op=startsWith&value=1") == ["1"]
    page = member.get("/console/records/people?tick=status:new&tick=status:customer").text
    assert "Status is new or customer" in page
    assert len(re.findall(r'name="tick" value="status:(?:new|customer)" checked', page)) == 2
    assert "op=" not in re.findall(r'class="chip" href="([^"]*)"', page)[0]
    everything = {"everything": "1", "do": "csv", "where": "status", "op": "equals", "value": "new", "tick": "status:customer"}
    assert member.send("/console/records/people/selected", **everything).text.count("@example.com") == 3
    assert found("where=address.city&op=equals&value=Berlin") == ["1"]
    assert found("where=address.city&op=contains&value=BERL") == ["1", "2"]
    assert found("where=address.city&op=contains&value=ö") == ["0"]
    assert found("where=address.city&op=notContains&value=berl") == ["0", "3"]
    assert found("where=address.city&op=isEmpty&value=") == ["3"]
    assert "Address: City contains berl" in member.get("/console/records/people?where=address.city&op=contains&value=berl").text
    attributes = service.client.get(f"/api/v1/objects/{service.object_id('people')}/attributes").json()["attributes"]
    [status] = [attribute["id"] for attribute in attributes if attribute["slug"] == "status"]
    edit = f"/api/v1/objects/{service.object_id('people')}/attributes/{status}/options"
    assert service.client.post(edit, json={"add": [NASTY]}).is_success
    page = member.client.get("/console/records/people", params={"tick": [f"status:{NASTY}", "status:new"]}).text
    assert "<script>alert" not in page
    assert "Status is &lt;script" in page
    filters = {"filters": [{"attributeSlug": "address.city", "operator": "equals", "value": "Berlin"}]}
    refused = service.client.post(f"/api/v1/objects/{service.object_id('people')}/records/search", json=filters)
    assert (refused.status_code, "unknown attribute" in refused.json()["message"]) == (400, True), "the interface has no filters of parts"


def test_a_filter_of_amounts_may_name_a_currency(service: RunningService, member: Visitor) -> None:
    for name, amount, currency in (("a", 1500, "EUR"), ("b", 1500, "USD"), ("c", 900, "EUR")):
        add(service, "deals", name=name, amount={"amount": amount, "currency": currency})

    def found(value: str) -> list[str]:
        page = member.client.get(
            "/console/records/deals", params={"column": "name", "sort": "name", "where": "amount", "op": "greaterThan", "value": value}
        ).text
        return re.findall(r'<th scope="row"[^>]*><a[^>]*>(\w)<', page)

    assert found("1,000") == ["a", "b"]
    assert found("1,000 EUR") == found("eur 1000") == found("€1,000") == ["a"]
    assert found("$1000.00") == ["b"]
    for wrong in ("1000 EURO", "EUR 1 USD", "EUR"):
        assert member.client.get(f"/console/records/deals?where=amount&op=greaterThan&value={wrong}").status_code == 400, wrong


def test_a_filter_of_listed_amounts_has_no_currency(service: RunningService, member: Visitor) -> None:
    made = {"name": "Quotes", "slug": "quotes", "type": "currency", "isList": True}
    assert service.client.post(f"/api/v1/objects/{service.object_id('deals')}/attributes", json=made).status_code == 201
    add(service, "deals", name="a", quotes=[{"amount": 1500, "currency": "EUR"}, {"amount": 5, "currency": "USD"}])
    path = "/console/records/deals?column=name&where=quotes&op=greaterThan&value="
    assert ">a</a>" in member.get(path + "1000").text
    assert member.get(path + "1000 EUR").status_code == 400


def test_a_condition_lists_its_own_attribute_and_can_be_changed_or_removed(service: RunningService, visitor: Visitor) -> None:
    for score in (1, 2, 3):
        add(service, "people", email=f"{score}@example.com", score=score)
    path = "/console/records/people?where=score&op=greaterThan&value=1&where=email&op=contains&value=@&sort=email"
    reader = PlainReader(visitor.client).open(path)
    offered = [re.findall(r'<option value="([^"]*)"', row) for row in re.findall(r'<select id="where-.*?</select>', reader.text)]
    assert offered[:2] == [["", "score"], ["", "email"]]
    assert {"", "score", "email", "address.city", "created_at", "id"} < set(offered[2])
    reader.press("Filter", {"Operator of condition 1": "is less than", "Value of condition 1": "3", "Attribute of condition 2": "–"})
    assert re.findall(r'<th scope="row"[^>]*><a[^>]*>(\d)@', reader.text) == ["1", "2"]
    assert reader.answer.url.params.get_list("where") == ["score", "", ""]


def test_too_many_conditions_are_refused(service: RunningService, member: Visitor) -> None:
    for slug in ("address.city", "email"):
        for name in ("", "/csv"):
            path = f"/console/records/people{name}?" + f"where={slug}&op=contains&value=x&" * 101
            refused = member.get(path)
            assert (refused.status_code, "at most 100 filters" in refused.text) == (400, True), path[:60]
    assert member.get("/console/records/people?" + "where=address.city&op=contains&value=x&" * 100).status_code == 200


def test_a_view_keeps_conditions_without_a_value(service: RunningService, member: Visitor) -> None:
    for data in ({"notes": "x"}, {"email": "a@example.com", "notes": "x"}, {"notes": "y"}):
        add(service, "people", **data)
    for conditions, matches in (
        ("where=email&op=isEmpty&value=", 2),
        ("where=created_at&op=today&value=&where=notes&op=contains&value=x", 2),
        ("where=email&op=isEmpty&value=&where=notes&op=contains&value=x", 1),
    ):
        saved = member.send("/console/records/people/views", name="Empty", query=conditions)
        assert saved.headers["location"] == f"/console/records/people?{conditions}&notice=view-saved"
        page = member.follow(saved).text
        assert f"1–{matches} of {matches}" in page
        assert re.findall(r'<a href="([^"]*)" aria-current="true">Empty', page) == [f"/console/records/people?{html.escape(conditions)}"]
    assert member.send("/console/records/people/views", name="Wide", query="&".join("a" * 5001)).status_code == 403


def test_views_are_private_or_shared_and_deleted_by_their_owners(service: RunningService, member: Visitor, newcomer: Newcomer) -> None:
    add(service, "people", email="ada@example.com", status="customer")
    path = "/console/records/people"
    query = "where=status&op=equals&value=customer&column=email&sort=email"
    assert "Save view" not in member.get(path).text
    assert "Save view" in member.get(f"{path}?{query}").text
    for name, shared in (("Mine", ""), (NASTY, "1")):
        saved = member.follow(member.send(f"{path}/views", name=name, shared=shared, query=query))
        assert "The view is saved" in saved.text
        assert "<script>alert" not in saved.text
        query = query.replace("sort=email", "sort=-email")
    assert member.send(f"{path}/views", name=" ", query=query).status_code == 400
    assert member.send(f"{path}/views", name="Long", query=f"q={'x' * 190}&where=email&op=equals&value={'y' * 5000}").status_code == 400
    assert member.get("/console/records/deals").text.count("Mine") == 0
    viewer = newcomer(service)
    viewer.enter_as("viewer")
    page = viewer.get(path).text
    assert "Mine" not in page
    [shared_path] = re.findall(r'href="([^"]+)">[^<]*&lt;script', page)
    assert "ada@example.com" in viewer.get(html.unescape(shared_path)).text
    viewer.follow(viewer.send(f"{path}/views", name="Of a viewer", shared="1", query=query))
    assert "Of a viewer" not in member.get(path).text, "viewers cannot share views"
    admin = newcomer(service)
    admin.enter_as("admin")
    for name, kept in ((NASTY, 2), (" ", 2)):
        admin.send(f"{path}/views", name=name, shared="1", query=f"sort=email&q={'x' if name == NASTY else 'y'}")
        assert member.get(path).text.count("q=x&amp;sort=email") == 1, "an admin can change a member's view"
        assert len(re.findall(r'<a href="[^"]*">(?:Mine|[^<]*&lt;script)', member.get(path).text)) == kept
    [shared_path] = re.findall(r'href="([^"]+)">[^<]*&lt;script', member.get(path).text)
    views = re.findall(r'name="view" value="([^"]+)"', member.get(html.unescape(shared_path)).text)
    assert len(views) == 1
    assert viewer.send(f"{path}/views/delete", view=views[0]).status_code == 403
    member.follow(member.send(f"{path}/views/delete", view=views[0]))
    assert "&lt;script" not in member.get(path).text
    assert "Mine" in member.get(path).text


def test_the_last_of_the_permitted_views_can_be_saved_again(
    service: RunningService, member: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "MOST_VIEWS", 2)
    saved = [member.send("/console/records/people/views", name=name, query=f"q={words}") for name, words in ("aa", "bb", "bc", "dd")]
    assert [answer.status_code for answer in saved] == [303, 303, 303, 400]
    assert "/console/records/people?q=c" in member.get("/console/records/people").text
