"""Records in the browser: lists, forms, references, conflicts, referring records, activities."""

from __future__ import annotations

import html
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crmctl.service.store import record_pages
from crmctl.service.store.tx import Tx
from crmctl.values.operators import Operator
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_pages import NASTY
from tests.support.patience import PATIENCE
from tests.support.service import RunningService
from tests.support.stored_records import add, read


@pytest.fixture
def member(service: RunningService, newcomer: Newcomer) -> Visitor:
    made = newcomer(service)
    made.enter_as("member")
    return made


def fields_of(page: str) -> dict[str, str]:
    """Return the fields that a browser would send of a page's untouched record form."""
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
    assert re.search(r"updated by Ada.*?Score</strong>: <del>1.5</del> → 2", page, re.DOTALL)
    assert "created by Ada" in member.get(f"{path}/{ada}/history").text
    assert "You can undo this" in member.get(f"{path}/{ada}/delete").text
    service.clock.advance(1)  # type: ignore[attr-defined]
    assert "is deleted" in member.follow(member.send(f"{path}/{ada}/delete")).text
    assert member.get(f"{path}/{ada}").status_code == 404
    assert service.outbox()[-1][0] == "record.deleted"


def test_a_record_saved_meanwhile_is_not_deleted(service: RunningService, member: Visitor) -> None:
    path = f"/console/records/companies/{add(service, 'companies', name='Acme', domain='acme.example')}"
    looked_at = re.search(r'name="version" value="([0-9a-f]+)"', member.get(f"{path}/delete").text)
    assert looked_at
    save(member, f"{path}/edit", name="Acme, saved meanwhile")
    add(service, "people", email="linked@example.com", company=path.rpartition("/")[2])
    asked = member.get(f"{path}/delete").text
    assert "1 record refers to it" in asked
    assert re.search(r'<a href="/console/records/people/[^"]+">linked@example.com', asked)
    assert re.search(r"You can undo this until \d+ [A-Z][a-z]+ \d{4}, on the next page or under Deleted", asked)
    refused = member.send(f"{path}/delete", version=looked_at[1])
    assert refused.status_code == 409
    assert re.search(r"saved this record meanwhile\.", refused.text)
    assert "Acme, saved meanwhile" in member.get(path).text
    now = re.search(r'name="version" value="([0-9a-f]+)"', refused.text)
    assert now
    assert "is deleted" in member.follow(member.send(f"{path}/delete", version=now[1])).text


def test_problems_are_shown_at_their_fields_and_entries_are_kept(service: RunningService, member: Visitor) -> None:
    add(service, "companies", name="Acme", domain="acme.example")
    refused = save(member, "/console/records/companies/new", domain="acme.example", employees="many", name="Other")
    assert refused.status_code == 400
    assert re.search(r'id="h-employees">[^<]*not a number', refused.text)
    assert 'value="many"' in refused.text
    refused = save(member, "/console/records/companies/new", domain="ACME.example", name="Other")
    assert re.search(r'class="problem" id="h-domain">[^<]*unique', refused.text)
    assert re.search(r'id="h-name">[^<]*required', save(member, "/console/records/companies/new").text)


def test_references_are_found_by_name_chosen_and_searched_while_typing(service: RunningService, member: Visitor) -> None:
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


def test_concurrent_edits_lose_no_change(service: RunningService, member: Visitor) -> None:
    ada = add(service, "people", email="ada@example.com", job_title="old", score=1, notes="old")
    path = f"/console/records/people/{ada}/edit"
    mine = fields_of(member.get(path).text) | {"f:job_title": "mine", "f:notes": "mine"}
    service.clock.advance(1)  # type: ignore[attr-defined]
    theirs = {"data": {"score": 2, "notes": "theirs"}}
    service.client.patch(f"/api/v1/objects/{service.object_id('people')}/records/{ada}", json=theirs)
    conflict = member.client.post(path, data=mine)
    assert conflict.status_code == 409
    assert re.search(r"First key \(on \d+ [A-Z][a-z]{2} \d{4}, \d\d:\d\d\) saved this record", conflict.text)
    assert read(service, "people", ada)["job_title"] == "old"
    assert re.search(r"Saved meanwhile: <span[^>]*>theirs", conflict.text)
    again = fields_of(conflict.text)
    assert (again["f:job_title"], again["f:notes"], again["f:score"]) == ("mine", "mine", "2")
    member.follow(member.client.post(path, data=again))
    found = read(service, "people", ada)
    assert (found["job_title"], found["notes"], found["score"], found["email"]) == ("mine", "mine", 2, "ada@example.com")


VALUES = {"isEmpty": "", "isNotEmpty": "", "isTrue": "", "isFalse": ""}


@pytest.mark.parametrize("operator", list(Operator))
def test_every_operator_filters_like_the_interface(service: RunningService, member: Visitor, operator: Operator) -> None:
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
    assert re.findall(r'<th scope="row"[^>]*><a href="/console/records/people/([0-9a-f-]{36})"', page) == [
        record["id"] for record in wanted
    ]


def test_a_list_has_columns_pages_an_order_and_a_file(service: RunningService, member: Visitor) -> None:
    for number in range(27):
        add(service, "people", email=f"p{number}@example.com", notes=NASTY if number == 0 else f"=1+{number}", tags=["a", "b"])
        service.clock.advance(1)  # type: ignore[attr-defined]
    question = "column=email&column=notes&column=tags&sort=created_at&where=email&op=contains&value=p&"
    page = member.get(f"/console/records/people?{question}").text
    assert re.findall(r'<th scope="col"[^>]*><a[^>]*>([^<]*)', page) == ["Email", "Notes", "Tags"]
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


def test_a_long_list_shows_how_many_records_it_searched(service: RunningService, member: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "1–1 of 1 among the oldest 14 records · Search all 30" in shown(f"{smith}&sort=created_at")
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


def test_a_member_adds_an_activity_to_a_record(service: RunningService, member: Visitor) -> None:
    ada = add(service, "people", email="ada@example.com")
    path = f"/console/records/people/{ada}"
    assert member.send(f"{path}/activities", title=" ").status_code == 400
    page = member.follow(member.send(f"{path}/activities", title=NASTY, summary="More", date="2026-01-31T09:30"))
    assert "<script>alert" not in page.text
    [activity] = service.client.get("/api/v1/activities", params={"recordId": ada}).json()["activities"]
    assert (activity["title"], activity["createdBy"]["name"]) == (NASTY, "Ada")
    assert activity["activityDate"].startswith("2026-01-31T09:30")


def test_a_viewer_sees_records_without_ways_to_change_them(service: RunningService, newcomer: Newcomer) -> None:
    ada = add(service, "people", email="ada@example.com")
    viewer = newcomer(service)
    viewer.enter_as("viewer")
    for path in ("/console/records/people", f"/console/records/people/{ada}"):
        page = viewer.get(path).text
        assert "ada@example.com" in page
        assert not re.search(r'/records/[^"]*/(new|edit|delete|activities)', page)
    assert viewer.get(f"/console/records/people/{ada}/edit").status_code == 403


def test_filters_and_forms_accept_values_as_lists_show_them(service: RunningService, member: Visitor) -> None:
    made = member.follow(save(member, "/console/records/deals/new", name="Renewal", amount__amount="12,500.50", amount__currency="eur"))
    deal = str(made.url).partition("?")[0].rpartition("/")[2]
    assert read(service, "deals", deal)["amount"] == {"amount": 12500.5, "currency": "EUR"}
    page = member.get("/console/records/deals?where=amount&op=greaterThan&value=12,500.00").text
    assert "€12,500.50" in page
    assert re.search(r'<option value="greaterThan" data-types="number currency date"', page)
    assert not re.search(r'<select id="op-1".*?value="contains".*?</select>', page.partition("op-2")[0])
    assert "Amount is greater than 12,500.00" in page
    dated = member.get("/console/records/deals?where=close_date&op=greaterThanOrEqual&value=2027-01-05").text
    assert "Close date is on or after 5 Jan 2027" in dated
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


def test_amounts_dates_and_options_are_short(service: RunningService, member: Visitor) -> None:
    money = {"amount": -1200, "currency": "USD"}
    deal = add(service, "deals", name="Refund", amount=money, stage="won", close_date="2027-02-05")
    page = member.get(f"/console/records/deals/{deal}").text
    assert "-$1,200" in page
    assert '<span class="chip green">Won</span>' in page
    assert '<time datetime="2027-02-05">5 Feb 2027</time>' in page


def test_times_use_the_zone_of_the_browser_or_the_organization(service: RunningService, member: Visitor) -> None:
    """It is the same moment everywhere, but perhaps tomorrow in Tokyo or yesterday in Honolulu."""
    add(service, "people", email="a@example.com")
    shown = re.compile(r'<td data-label="Created"><time[^>]*>([^<]+)<')
    days = {}
    for zone in ("Asia/Tokyo", "Pacific/Honolulu", "../../etc/passwd"):
        member.client.cookies.set("crm_zone", zone)
        page = member.get("/console/records/people?where=created_at&op=today&value=").text
        assert "1–1 of 1" in page
        days[zone] = shown.findall(page)[0]
    now = datetime.fromtimestamp(service.clock.now(), UTC)
    for zone, hours in (("Asia/Tokyo", 9), ("Pacific/Honolulu", -10), ("../../etc/passwd", 0)):
        there = now + timedelta(hours=hours)
        assert days[zone] == f"{there.day} {there:%b %Y}"
    member.client.cookies.delete("crm_zone")
    operator = Visitor(service)
    with operator.client:
        operator.enter()
        refused = operator.send("/console/settings", name="Acme <b>", timeZone="Mars/Olympus", currency="EUR")
        assert (refused.status_code, "such as Europe/Berlin" in refused.text) == (400, True)
        operator.follow(operator.send("/console/settings", name="Acme <b>", timeZone="Asia/Tokyo", currency="eur"))
        assert "Acme &lt;b&gt;" in operator.get("/console").text
        assert "timeZone: UTC → Asia/Tokyo" in operator.get("/console/audit?about=settings").text
    page = member.get("/console/records/people").text
    assert shown.findall(page)[0] == days["Asia/Tokyo"]
    assert "Times are in Asia/Tokyo" in page
    assert re.search(r'name="f:amount:currency" value="EUR"', member.get("/console/records/deals/new").text)


def test_a_search_ignores_word_order_and_accents(service: RunningService, member: Visitor) -> None:
    katharina = add(service, "people", name={"first": "Katharina", "last": "Müller-Lüdenscheidt"}, email="km@example.com")
    add(service, "people", name={"first": "Katharina", "last": "Meier"})
    soren = add(service, "companies", name=f"Søren [x] Łódź & {NASTY}")
    page = member.get("/console/search?q=muller katharina").text
    assert f'href="/console/records/people/{katharina}">Katharina Müller-Lüdenscheidt' in page
    assert "Meier" not in page
    page = member.get("/console/search?q=lodz SOREN [X]").text
    assert f'href="/console/records/companies/{soren}">' in page
    assert "<script>alert" not in page
    assert member.get("/console/search/lookup?q=müller").json()[0]["path"] == f"/records/people/{katharina}"
    assert "No record has these words" in member.get("/console/search?q=nobody").text
    listed = member.get("/console/records/people?q=katharina+mull&where=email&op=contains&value=km").text
    assert "1–1 of 1" in listed
    assert "No record meets" in member.get("/console/records/people?q=katharina+mull&where=email&op=contains&value=zz").text
    viewer = service.client.get("/console/search?q=muller")
    assert viewer.status_code == 403


@pytest.mark.parametrize(
    ("slug", "ascending"),
    [
        ("name", ["alpha", "Beta", "gamma", "none"]),
        ("stage", ["Beta", "alpha", "gamma", "none"]),
        ("amount", ["alpha", "gamma", "Beta", "none"]),
        ("company", ["gamma", "alpha", "Beta", "none"]),
        ("close_date", ["Beta", "gamma", "alpha", "none"]),
    ],
)
def test_a_header_sorts_both_ways_and_empty_values_come_last(
    service: RunningService, member: Visitor, slug: str, ascending: list[str]
) -> None:
    acme, acorn = add(service, "companies", name="Acme"), add(service, "companies", name="acorn")
    zoo = add(service, "companies", name="Zoo")
    add(service, "deals", name="none")
    rows = (
        ("alpha", "qualified", (9, "EUR"), acorn, "2027-03-01"),
        ("Beta", "lead", (10, "USD"), zoo, "2027-01-01"),
        ("gamma", "won", (10, "EUR"), acme, "2027-02-01"),
    )
    for name, stage, (amount, currency), company, day in rows:
        money = {"amount": amount, "currency": currency}
        add(service, "deals", name=name, stage=stage, amount=money, company=company, close_date=day)

    def names(question: str) -> list[str]:
        page = member.get(f"/console/records/deals?column=name&column={slug}&{question}").text
        return re.findall(r'<th scope="row"[^>]*><a[^>]*>([^<]*)', page)

    assert names(f"sort={slug}") == ascending
    descending = ascending[::-1] if slug == "name" else [*ascending[2::-1], "none"]
    assert names(f"sort=-{slug}") == descending
    page = member.get(f"/console/records/deals?column={slug}&sort={slug}").text
    assert re.search(r'aria-sort="ascending"><a href="[^"]*sort=-', page)
    lines = member.get(f"/console/records/deals/csv?column=name&sort={slug}").text.splitlines()
    assert [line.rpartition(",")[2] for line in lines[1:]] == ascending


def test_too_many_records_are_not_sorted(service: RunningService, member: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_pages, "LOOKED", 2)
    for name in "abc":
        add(service, "companies", name=name)
    refused = member.get("/console/records/companies?sort=name")
    assert (refused.status_code, "cannot be sorted by this attribute" in refused.text) == (400, True)
    assert "1–1 of 1" in member.get("/console/records/companies?sort=name&where=name&op=equals&value=b").text


def test_conditions_of_reports_accept_values_as_lists_show_them(service: RunningService, visitor: Visitor) -> None:
    form = {"name": "R", "object": "people", "kind": "records", "where": ["status", "score"], "op": ["equals", "greaterThan"]}
    visitor.follow(visitor.send("/console/reports", **form, value=["Customer", "1,250.50"]))
    [report] = service.client.get("/api/v1/reports").json()["reports"]
    filters = service.client.get(f"/api/v1/reports/{report['id']}").json()["definition"]["filters"]
    assert [condition["value"] for condition in filters] == ["customer", "1250.50"]


def chosen(page: str) -> list[str]:
    return re.findall(r'name="id" value="([0-9a-f-]{36}:[0-9a-f]+)"', page)


def test_selected_records_are_previewed_changed_and_undone(service: RunningService, member: Visitor) -> None:
    ids = [add(service, "people", email=f"p{number}@example.com", status="new", tags=["a"]) for number in range(3)]
    path = "/console/records/people"
    clock: Any = service.clock
    assert "select at least one record" in member.send(f"{path}/selected", do="change", attribute="status").text.lower()
    seen = chosen(member.get(path).text)
    assert len(seen) == 3
    form = member.send(f"{path}/selected", id=seen[:2], do="change", attribute="status").text
    assert "Change Status of 2 records" in form
    asked = {"id": seen[:2], "attribute": "status", "f:status": "customer"}
    preview = member.send(f"{path}/selected", step="preview", **asked).text
    assert preview.count('<span class="chip ') == 4
    assert read(service, "people", ids[2])["status"] == "new"
    clock.advance(1)
    service.client.patch(f"/api/v1/objects/{service.object_id('people')}/records/{ids[2]}", json={"data": {"notes": "meanwhile"}})
    clock.advance(1)
    changed = member.send(f"{path}/selected", step="apply", **asked)
    page = member.follow(changed).text
    assert "1 record changed" in page
    assert "someone else saved meanwhile" in page
    assert [read(service, "people", record_id)["status"] for record_id in ids] == ["new", "customer", "new"]
    at = changed.headers["location"].partition("at=")[2].partition("&")[0]
    clock.advance(1)
    assert "The change is undone" in member.follow(member.send(f"{path}/changed", at=at)).text
    assert [read(service, "people", record_id)["status"] for record_id in ids] == ["new"] * 3
    assert member.get(f"{path}/changed?at=17").status_code == 404


@pytest.mark.parametrize("asked", [{"do": "delete"}, {"do": "change", "attribute": "status", "f:status": "customer"}])
def test_a_selection_of_which_every_record_was_saved_meanwhile_comes_back(
    service: RunningService, member: Visitor, asked: dict[str, str]
) -> None:
    ada = add(service, "people", email="ada@example.com")
    path = "/console/records/people/selected"
    seen = chosen(member.send(path, step="preview", id=chosen(member.get("/console/records/people").text), **asked).text)
    service.client.patch(f"/api/v1/objects/{service.object_id('people')}/records/{ada}", json={"data": {"notes": "meanwhile"}})
    refused = member.send(path, step="apply", id=seen, **asked)
    assert refused.status_code == 409
    assert re.search(r"First key \(on [^)]+\) saved ada@example.com; check the values", refused.text)
    assert read(service, "people", ada) == {"email": "ada@example.com", "notes": "meanwhile"}
    changed = member.follow(member.send(path, step="apply", id=chosen(refused.text), **asked)).text
    assert "1 record" in changed


def test_a_preview_of_a_selection_does_not_wait_for_a_writer(service: RunningService, member: Visitor) -> None:
    add(service, "people", email="ada@example.com")
    has_begun, is_over = threading.Event(), threading.Event()

    def write(_tx: Tx) -> None:
        has_begun.set()
        is_over.wait(PATIENCE)

    writer = threading.Thread(target=lambda: service.engine.write(write))
    writer.start()
    has_begun.wait(PATIENCE)
    try:
        asked = {"everything": "1", "attribute": "status", "f:status": "customer"}
        assert "Change 1 record<" in member.send("/console/records/people/selected", step="preview", **asked).text
    finally:
        is_over.set()
        writer.join()


def test_undo_keeps_later_changes_and_restores_deleted_records(service: RunningService, member: Visitor) -> None:
    clock: Any = service.clock
    ids = [add(service, "people", email=f"p{number}@example.com", tags=["a"]) for number in range(3)]
    path = "/console/records/people"
    clock.advance(1)
    asked = {"everything": "1", "do": "change", "attribute": "tags", "f:tags": "b\nc", "how": "add"}
    seen = chosen(member.send(f"{path}/selected", step="preview", **asked).text)
    changed = member.send(f"{path}/selected", step="apply", **{**asked, "everything": "", "id": seen})
    assert {tuple(read(service, "people", record_id)["tags"]) for record_id in ids} == {("a", "b", "c")}
    clock.advance(1)
    service.client.patch(f"/api/v1/objects/{service.object_id('people')}/records/{ids[0]}", json={"data": {"tags": ["mine"]}})
    clock.advance(1)
    at = changed.headers["location"].partition("at=")[2].partition("&")[0]
    undone = member.send(f"{path}/changed", at=at).text
    assert "except for these records" in undone
    assert "changed again since" in undone
    assert [read(service, "people", record_id)["tags"] for record_id in ids] == [["mine"], ["a"], ["a"]]
    clock.advance(1)
    question = {"where": "email", "op": "notEquals", "value": "p0@example.com"}
    confirm = member.send(f"{path}/selected", everything="1", do="delete", **question).text
    assert "Delete 2 records?" in confirm
    deleted = member.send(f"{path}/selected", do="delete", step="apply", id=chosen(confirm))
    assert "2 records deleted" in member.follow(deleted).text
    assert "1–1 of 1" in member.get(path).text
    clock.advance(1)
    at = deleted.headers["location"].partition("at=")[2].partition("&")[0]
    assert "The change is undone" in member.follow(member.send(f"{path}/changed", at=at)).text
    assert [read(service, "people", record_id)["email"] for record_id in ids] == [f"p{number}@example.com" for number in range(3)]


def test_deleting_a_selection_names_the_records_that_refer_to_it(service: RunningService, member: Visitor) -> None:
    attributes = f"/api/v1/objects/{service.object_id('companies')}/attributes"
    config = {"allowed_object_id": service.object_id("companies")}
    made = [
        {"name": "Parent", "type": "reference", "config": config},
        {"name": "Rivals", "type": "reference", "config": config, "isList": True},
    ]
    assert all(service.client.post(attributes, json=attribute).status_code == 201 for attribute in made)
    acme = add(service, "companies", name="Acme")
    other, owned = add(service, "companies", name="Other", parent=acme), add(service, "companies", name="Owned", parent=acme)
    ids = [add(service, "people", email=f"{number}@example.com", company=company) for number, company in enumerate([acme, other] * 4)]
    path = "/console/records/companies/selected"
    asked = member.send(path, id=[f"{acme}:", f"{other}:"], do="delete").text
    assert "9 records refer to them, and the links break" in asked
    assert "Lists that may name them are not counted here (Companies: Rivals)." in asked
    assert re.search(rf'<a href="/console/records/companies/{owned}">Owned', asked)
    named = [record_id for record_id in ids if f"/console/records/people/{record_id}" in asked]
    assert (len(named), "And 3 more." in asked) == (5, True)
    assert re.search(r"You can undo this until \d+ [A-Z][a-z]+ \d{4}, on the next page or under Deleted", asked)
    assert "Lists that may name it are" in member.send(path, id=[f"{owned}:"], do="delete").text


def test_a_bad_change_of_a_selection_changes_nothing(service: RunningService, member: Visitor) -> None:
    for number in range(2):
        add(service, "people", email=f"p{number}@example.com", score=number)
    path = "/console/records/people"
    seen = chosen(member.get(path).text)
    refused = member.send(f"{path}/selected", id=seen, attribute="score", step="preview", **{"f:score": "many"})
    assert (refused.status_code, "not a number" in refused.text) == (400, True)
    refused = member.send(f"{path}/selected", id=seen, attribute="email", step="apply", **{"f:email": "x@example.com"})
    assert (refused.status_code, "Choose the attribute" in refused.text) == (400, True)
    viewer = member
    viewer.enter_as("viewer")
    assert viewer.send(f"{path}/selected", id=seen, do="delete", step="apply").status_code == 403
    assert 'name="id"' not in viewer.get(path).text


def test_the_file_has_a_column_for_each_part_and_for_names(
    service: RunningService, member: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crmctl.service.console.record_list.CHUNK", 2)
    acme = add(service, "companies", name="=Acme")
    for number in range(5):
        add(service, "deals", name=f"D{number}", amount={"amount": 10.5, "currency": "EUR"}, company=acme)
    lines = member.get("/console/records/deals/csv?column=name&column=amount&column=company&column=created_at&sort=name").text.splitlines()
    assert lines[0].lstrip("\ufeff") == "id,name,amount.amount,amount.currency,company,company name,created_at"
    assert len(lines) == 6
    assert re.search(rf",D0,10.5,EUR,{acme},'=Acme,20", lines[1])
    seen = re.findall(r'name="id" value="([^"]+)"', member.get("/console/records/deals?column=name&sort=name").text)
    picked = member.send("/console/records/deals/selected", do="csv", id=[seen[3], seen[1]], column="name", sort="name").text
    assert [line.partition(",")[2] for line in picked.splitlines()] == ["name", "D1", "D3"]
    # The bound of changes is none of files.
    monkeypatch.setattr("crmctl.service.console.record_changes.MOST_SELECTED", 2)
    asked = {"do": "csv", "everything": "1", "where": "name", "op": "notEquals", "value": "D0", "column": "name", "sort": "name"}
    every = member.send("/console/records/deals/selected", **asked).text
    assert [line.partition(",")[2] for line in every.splitlines()] == ["name", "D1", "D2", "D3", "D4"]


def test_deleted_records_are_listed_and_restored_with_their_references(service: RunningService, member: Visitor) -> None:
    clock: Any = service.clock
    acme = add(service, "companies", name=f"Acme {NASTY}")
    ada = add(service, "people", email="ada@example.com", company=acme)
    path = "/console/records/companies"
    assert "No records were deleted lately" in member.get(f"{path}/deleted").text
    for _ in range(2):
        clock.advance(1)
        service.client.delete(f"/api/v1/objects/{service.object_id('companies')}/records/{acme}")
        page = member.get(f"{path}/deleted").text
        assert page.count(">Restore<") == 1
        assert "<script>alert" not in page
        assert "First key" in page
        clock.advance(1)
        restored = member.follow(member.send(f"{path}/deleted", id=acme)).text
        assert "The record is restored" in restored
        assert f"/records/people/{ada}" in restored
    assert member.send(f"{path}/deleted", id=acme).status_code == 404
    assert member.send(f"{path}/deleted", id="nobody").status_code == 404


def test_the_overview_shows_new_records_and_stages_of_deals(service: RunningService, member: Visitor) -> None:
    clock: Any = service.clock
    add(service, "deals", name="old", stage="won")
    clock.advance(8 * 86400)
    member.enter_as("member")
    for name in ("a", "b"):
        add(service, "deals", name=name, stage="lead")
    page = member.get("/console").text
    assert "Deals · 2 new this week" in page
    assert re.search(r"<strong>2</strong><span class=.chip [a-z]+.>Lead<", page)
    assert re.search(r"<strong>1</strong><span class=.chip [a-z]+.>Won<", page)
    assert "API key</span>" not in page


def test_an_undo_names_deleted_attributes(service: RunningService, member: Visitor) -> None:
    clock: Any = service.clock
    attributes = f"/api/v1/objects/{service.object_id('people')}/attributes"
    nickname = service.client.post(attributes, json={"name": "Nickname", "type": "text"}).json()["id"]
    ada = add(service, "people", email="ada@example.com", nickname="Countess", status="new")
    path = "/console/records/people"
    seen = chosen(member.get(path).text)
    clock.advance(1)
    deleted = member.send(f"{path}/selected", do="delete", step="apply", id=seen)
    at = deleted.headers["location"].partition("at=")[2].partition("&")[0]
    clock.advance(1)
    assert service.client.delete(f"{attributes}/{nickname}").is_success
    undone = member.send(f"{path}/changed", at=at).text
    assert "without values of nickname" in undone
    assert read(service, "people", ada) == {"email": "ada@example.com", "status": "new"}
