"""Records in the browser: the list and its questions, the typed form, references, conflicts, who refers to what, activities."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from crmctl.service.store import record_pages
from crmctl.values.operators import Operator
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_pages import NASTY
from tests.support.service import RunningService


@pytest.fixture
def member(service: RunningService, newcomer: Newcomer) -> Visitor:
    made = newcomer(service)
    made.enter_as("member")
    return made


def add(service: RunningService, slug: str, **data: Any) -> str:
    answer = service.client.post(f"/api/v1/objects/{service.object_id(slug)}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(service: RunningService, slug: str, record_id: str) -> Any:
    return service.client.get(f"/api/v1/objects/{service.object_id(slug)}/records/{record_id}").json()["data"]


def fields_of(page: str) -> dict[str, str]:
    """What a browser would send of a page's record form if nobody touched it."""
    form = page[page.index('<form class="form record-form"') :]
    form = form[: form.index("</form>")]
    fields = dict(re.findall(r'<input[^>]* name="([^"]+)"[^>]*? value="([^"]*)"', form))
    fields |= dict(re.findall(r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL))
    for name, options in re.findall(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL):
        fields[name] = next(iter(re.findall(r'value="([^"]*)" selected', options)), "")
    return {name: html.unescape(value) for name, value in fields.items()}


def save(visitor: Visitor, path: str, **typed: str) -> Any:
    fields = fields_of(visitor.get(path).text)
    fields |= {f"f:{name.replace('__', ':')}": text for name, text in typed.items()}
    return visitor.client.post(path.removesuffix("/new"), data=fields)


def test_a_record_is_created_shown_changed_and_deleted(service: RunningService, member: Visitor) -> None:
    acme = add(service, "companies", name="Acme")
    path = "/console/records/people"
    form = fields_of(member.get(f"{path}/new").text)
    typed = {
        "f:name:first": "Ada",
        "f:name:last": NASTY,
        "f:company": "acme",
        "f:tags": "a\r\nb",
        "f:score": "1.50",
        "f:subscribed": "true",
    }
    made = member.client.post(path, data=form | typed)
    assert made.status_code == 303, made.text
    ada = made.headers["location"].partition("?")[0].rpartition("/")[2]
    data = read(service, "people", ada)
    assert data == {"name": {"first": "Ada", "last": NASTY}, "company": acme, "tags": ["a", "b"], "score": 1.5, "subscribed": True}
    assert "already sent" in member.follow(member.client.post(path, data=form | typed)).text
    page = member.get(f"{path}/{ada}").text
    assert "<script>alert" not in page
    assert f'href="/console/records/companies/{acme}">Acme' in page
    assert f"/records/people/{ada}" in member.get(f"/console/records/companies/{acme}").text
    assert "nothing was saved" in member.follow(save(member, f"{path}/{ada}/edit")).text
    assert read(service, "people", ada) == data
    member.follow(save(member, f"{path}/{ada}/edit", name__first="", score="2", company=""))
    assert read(service, "people", ada) == {"name": {"last": NASTY}, "tags": ["a", "b"], "score": 2, "subscribed": True}
    page = member.get(f"{path}/{ada}").text
    assert re.search(r"updated by Ada .*?Score</strong>: <del>1.5</del> → 2", page, re.DOTALL)
    assert "created by Ada" in member.get(f"{path}/{ada}/history").text
    assert "cannot be undone" in member.get(f"{path}/{ada}/delete").text
    assert "is deleted" in member.follow(member.send(f"{path}/{ada}/delete")).text
    assert member.get(f"{path}/{ada}").status_code == 404
    assert service.outbox()[-1][0] == "record.deleted"


def test_a_deletion_is_of_what_was_looked_at(service: RunningService, member: Visitor) -> None:
    path = f"/console/records/companies/{add(service, 'companies', name='Acme', domain='acme.example')}"
    looked_at = re.search(r'name="version" value="([0-9a-f]+)"', member.get(f"{path}/delete").text)
    assert looked_at
    save(member, f"{path}/edit", name="Acme, saved meanwhile")
    refused = member.send(f"{path}/delete", version=looked_at[1])
    assert refused.status_code == 409
    assert "Someone saved this record meanwhile" in refused.text
    assert "Acme, saved meanwhile" in member.get(path).text
    now = re.search(r'name="version" value="([0-9a-f]+)"', refused.text)
    assert now
    assert "is deleted" in member.follow(member.send(f"{path}/delete", version=now[1])).text


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_lost(service: RunningService, member: Visitor) -> None:
    add(service, "companies", name="Acme", domain="acme.example")
    refused = save(member, "/console/records/companies/new", domain="acme.example", employees="many", name="Other")
    assert refused.status_code == 400
    assert re.search(r'id="h-employees">[^<]*not a number', refused.text)
    assert 'value="many"' in refused.text
    refused = save(member, "/console/records/companies/new", domain="ACME.example", name="Other")
    assert re.search(r'class="problem" id="h-domain">[^<]*unique', refused.text)
    assert re.search(r'id="h-name">[^<]*required', save(member, "/console/records/companies/new").text)


def test_a_reference_is_found_by_name_chosen_among_several_and_searched_as_one_types(service: RunningService, member: Visitor) -> None:
    first, second = (add(service, "companies", name="Twin", domain=f"{name}.example") for name in ("one", "two"))
    path = f"/console/records/people/{add(service, 'people', email='ada@example.com')}/edit"
    refused = save(member, path, company="twin")
    assert refused.status_code == 400
    assert set(re.findall(r'<option value="([0-9a-f-]{36})">Twin', refused.text)) == {first, second}
    assert "no record has this name" in save(member, path, company="nobody").text
    member.follow(save(member, path, company="twin", company__pick=second))
    assert read(service, "people", path.split("/")[-2])["company"] == second
    found = member.get("/console/records/companies/lookup?q=two.ex").json()
    assert found == [{"id": second, "label": "Twin", "about": "two.example"}]
    assert member.get("/console/records/companies/lookup?q=win").json()[0]["label"] == "Twin"


def test_somebody_elses_change_is_never_lost_and_neither_is_mine(service: RunningService, member: Visitor) -> None:
    ada = add(service, "people", email="ada@example.com", job_title="old", score=1, notes="old")
    path = f"/console/records/people/{ada}/edit"
    mine = fields_of(member.get(path).text) | {"f:job_title": "mine", "f:notes": "mine"}
    service.clock.advance(1)  # type: ignore[attr-defined]
    theirs = {"data": {"score": 2, "notes": "theirs"}}
    service.client.patch(f"/api/v1/objects/{service.object_id('people')}/records/{ada}", json=theirs)
    conflict = member.client.post(path, data=mine)
    assert conflict.status_code == 409
    assert re.search(r"First key \(on \d+ [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC\) saved this record", conflict.text)
    assert read(service, "people", ada)["job_title"] == "old"
    assert re.search(r"Saved meanwhile: <span[^>]*>theirs", conflict.text)
    again = fields_of(conflict.text)
    assert (again["f:job_title"], again["f:notes"], again["f:score"]) == ("mine", "mine", "2")
    member.follow(member.client.post(path, data=again))
    found = read(service, "people", ada)
    assert (found["job_title"], found["notes"], found["score"], found["email"]) == ("mine", "mine", 2, "ada@example.com")


VALUES = {"isEmpty": "", "isNotEmpty": "", "isTrue": "", "isFalse": ""}


@pytest.mark.parametrize("operator", list(Operator))
def test_every_operator_filters_as_the_interface_does(service: RunningService, member: Visitor, operator: Operator) -> None:
    for number in range(4):
        data = {"email": f"p{number}@example.com", "score": number, "birthday": f"2000-01-0{number + 1}"}
        add(service, "people", **data, **({"subscribed": number % 2 == 0} if number else {}))
    is_truth = operator in (Operator.IS_TRUE, Operator.IS_FALSE)
    slug, value = ("subscribed", "") if is_truth else ("email", "p2@example.com"[: 2 if "With" in operator else None])
    if operator is Operator.ENDS_WITH:
        value = "2@example.com"
    if not operator.takes_value:
        slug, value = "subscribed", ""
    page = member.get(f"/console/records/people?where={slug}&op={operator}&value={value}").text
    asked = {f"filter[{slug}][{operator}]": value or "true"}
    wanted = service.client.get(f"/api/v1/objects/{service.object_id('people')}/records", params=asked).json()["records"]
    assert 0 < len(wanted) < 4
    assert re.findall(r'<th scope="row"[^>]*><a href="/console/records/people/([0-9a-f-]{36})"', page) == [each["id"] for each in wanted]


def test_the_list_has_columns_pages_an_order_and_a_file_of_what_is_shown(service: RunningService, member: Visitor) -> None:
    for number in range(27):
        add(service, "people", email=f"p{number}@example.com", notes=NASTY if number == 0 else f"=1+{number}", tags=["a", "b"])
        service.clock.advance(1)  # type: ignore[attr-defined]
    question = "column=email&column=notes&column=tags&sort=oldest&where=email&op=contains&value=p&"
    page = member.get(f"/console/records/people?{question}").text
    assert re.findall(r'<th scope="col">([^<]*)', page) == ["Email", "Notes", "Tags"]
    assert "1–25 of 27" in page
    assert "<script>alert" not in page
    [following] = re.findall(r'rel="next" href="([^"]+)"', page)
    assert "26–27 of 27" in member.get(html.unescape(following)).text
    file = member.get(f"/console/records/people/csv?{question}")
    assert file.headers["content-disposition"] == 'attachment; filename="people.csv"'
    lines = file.content.decode("utf-8-sig").split("\n")
    assert lines[0] == "id,email,notes,tags"
    assert len(lines) == 29
    assert lines[2].endswith(',p1@example.com,\'=1+1,"[""a"",""b""]"')
    assert member.get("/console/records/people?where=nope&op=equals&value=x").status_code == 400
    assert member.get("/console/records/people?where=score&op=contains&value=x").status_code == 400
    assert member.get("/console/records/people?page=99").status_code == 200
    assert member.get("/console/records/nothing").status_code == 404


def test_a_long_list_says_how_far_it_was_looked_through_and_goes_on(
    service: RunningService, member: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        add(service, "people", job_title="Smith" if number == 0 else f"Baker {number}", tags=["a"])
        service.clock.advance(1)  # type: ignore[attr-defined]
    monkeypatch.setattr(record_pages, "LOOKED", 14)
    monkeypatch.setattr(record_pages, "MOST", 5)
    monkeypatch.setattr(record_pages, "SAMPLE", 5)
    monkeypatch.setattr("crmctl.service.console.record_list.PER_PAGE", 4)

    def shown(question: str) -> str:
        return " ".join(re.sub(r"<[^>]+>", "", member.get(f"/console/records/people?{question}").text).split())

    def href(question: str, text: str) -> str:
        page = member.get(f"/console/records/people?{question}").text
        return html.unescape(re.findall(rf'href="/console/records/people[?]([^"]*)">{text}', page)[0])

    smith = "where=job_title&op=contains&value=smith"
    assert "No match among the newest 14 records. Search all 30" in shown(smith)
    assert "1–1 of 1 among the oldest 14 records · Search all 30" in shown(f"{smith}&sort=oldest")
    assert re.search(r"1–1 of 1 (?!among)", shown(href(smith, "Search all 30")))
    baker = "where=job_title&op=contains&value=baker"
    assert "1–4 of more than 5 · Count all" in shown(baker)
    assert "9–12 of more than 12" in shown(f"{baker}&page=3")
    last = shown(f"{baker}&page=4")
    assert "13–14 of 14 among the newest 14 records" in last
    assert "Next" not in last
    assert "No more matches among the newest 14 records" in shown(f"{baker}&page=5")
    counted = href(baker, "Count all")
    assert "1–4 of 29" in shown(counted)
    assert "5–8 of 29" in shown(href(counted, "Next"))
    assert "1–4 of 30" in shown("")
    assert "No record meets these conditions" in shown("where=email&op=contains&value=nobody")


def test_an_activity_is_added_to_a_record_by_its_member(service: RunningService, member: Visitor) -> None:
    ada = add(service, "people", email="ada@example.com")
    path = f"/console/records/people/{ada}"
    assert member.send(f"{path}/activities", title=" ").status_code == 400
    page = member.follow(member.send(f"{path}/activities", title=NASTY, summary="More", date="2026-01-31T09:30"))
    assert "<script>alert" not in page.text
    [activity] = service.client.get("/api/v1/activities", params={"recordId": ada}).json()["activities"]
    assert (activity["title"], activity["createdBy"]["name"]) == (NASTY, "Ada")
    assert activity["activityDate"].startswith("2026-01-31T09:30")


def test_a_viewer_sees_records_and_no_way_to_change_them(service: RunningService, newcomer: Newcomer) -> None:
    ada = add(service, "people", email="ada@example.com")
    viewer = newcomer(service)
    viewer.enter_as("viewer")
    for path in ("/console/records/people", f"/console/records/people/{ada}"):
        page = viewer.get(path).text
        assert "ada@example.com" in page
        assert not re.search(r'/records/[^"]*/(new|edit|delete|activities)', page)
    assert viewer.get(f"/console/records/people/{ada}/edit").status_code == 403


def test_filters_and_forms_take_values_as_lists_show_them(service: RunningService, member: Visitor) -> None:
    made = member.follow(save(member, "/console/records/deals/new", name="Renewal", amount__amount="12,500.50", amount__currency="eur"))
    deal = str(made.url).partition("?")[0].rpartition("/")[2]
    assert read(service, "deals", deal)["amount"] == {"amount": 12500.5, "currency": "EUR"}
    page = member.get("/console/records/deals?where=amount&op=greaterThan&value=12,500.00").text
    assert "€12,500.50" in page
    assert 'data-operators="equals notEquals greaterThan' in page
    assert not re.search(r'<select id="op-1".*?value="contains".*?</select>', page.partition("op-2")[0])
    add(service, "people", email="ada@example.com", status="customer")
    page = member.get("/console/records/people?where=status&op=equals&value=Customer").text
    assert "ada@example.com" in page
    assert "1–1 of 1" in page
    assert '<option value="customer">' in page


def test_a_duplicate_is_reported_once_with_a_link_to_the_other_record(service: RunningService, member: Visitor) -> None:
    ada = add(service, "people", email="ada@example.com")
    page = save(member, "/console/records/people/new", email="ada@example.com").text
    assert page.count("unique") == 1
    assert f'href="/console/records/people/{ada}">ada@example.com</a>' in page


def test_money_dates_and_options_are_short(service: RunningService, member: Visitor) -> None:
    money = {"amount": -1200, "currency": "USD"}
    deal = add(service, "deals", name="Refund", amount=money, stage="won", close_date="2027-02-05")
    page = member.get(f"/console/records/deals/{deal}").text
    assert "-$1,200" in page
    assert '<span class="chip green">won</span>' in page
    assert '<time datetime="2027-02-05" title="2027-02-05" data-short>5 Feb 2027</time>' in page
