"""The console and the portal in a real browser: keys, endpoints, deliveries; light, dark and narrow; with the keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_core_python
import pytest
import standardwebhooks
from selenium.webdriver.common.keys import Keys

from crmctl.service.console.visits import PORTAL
from crmctl.service.store import short_lived_keys, webhooks
from tests.service.console.conftest import Newcomer, cookie_name, link_to
from tests.support.browser import NARROW, WIDE, Browser
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.consolepages import furnish, unknown_pages
from tests.support.patience import PATIENCE
from tests.support.receiver import Receiver
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.needs("chromium", "chromedriver")

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
UNLABELLED = """
const fields = [...document.querySelectorAll("input:not([type=hidden]), textarea, select")];
return fields.filter(field => !field.labels.length).map(field => field.name);
"""

CUT_OFF = """
const scrolls = ".hidden, svg, .wide, .chart, pre";
const shown = [...document.querySelectorAll("main *")].filter(each => each.checkVisibility() && !each.closest(scrolls));
return shown.filter(each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 200));
"""


DESK = (1440, 900)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunningService]:
    """A service that delivers, also to this machine."""
    with running_service(tmp_path / "data", development=True) as service:
        yield service


@pytest.fixture
def browser(chromium: Browser, live: RunningService) -> Browser:
    """A browser that has signed in to the console."""
    chromium.scheme("light")
    chromium.size(WIDE)
    chromium.driver.delete_all_cookies()
    chromium.complaints()
    chromium.get(link_to(live))
    chromium.wait_for("Log in from a terminal")
    return chromium


def person(service: RunningService, **data: Any) -> Any:
    return service.client.post(f"/api/v1/objects/{service.object_id('people')}/records", json={"data": data}).json()


def test_a_key_from_the_console_works_on_the_command_line_until_revoked(browser: Browser, live: RunningService) -> None:
    browser.visit("API keys")
    browser.press("Create a key")
    browser.fill("Name", "warehouse")
    browser.tick("Only these scopes")
    browser.tick("objects:read")
    browser.tick("records:read")
    browser.press("Create the key")
    value = browser.wait_for(r"crs_[\w-]{43}")[0]
    settings = {"CRMCTL_BASE_URL": live.base_url, "CRMCTL_API_KEY": value}
    found = run_crmctl("objects", "list", "-o", "json", env=settings).ok().json()
    assert {"people", "companies", "deals"} <= {crm_object["slug"] for crm_object in found}
    run_crmctl("members", "list", env=settings).exits(4)
    browser.press("Done")
    browser.wait_for("warehouse")
    assert value not in browser.driver.page_source
    browser.press("Revoke warehouse")
    browser.press("Revoke the key")
    browser.wait_for("The key is revoked")
    run_crmctl("objects", "list", env=settings).exits(4)
    assert browser.complaints() == []


def test_a_member_logs_a_device_in(browser: Browser, live: RunningService, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_lived_keys, "INTERVAL", 0)
    member = newcomer(live)
    member.enter_as("member", "Ada")
    token = member.client.cookies[cookie_name(live)]
    with start_crmctl("auth", "login", "--device", "--insecure-storage", "--base-url", live.base_url) as process:
        assert process.stderr is not None
        address, code = process.stderr.readline().removeprefix("open ").split(" and approve the code ")
        browser.driver.delete_all_cookies()
        browser.driver.add_cookie({"name": cookie_name(live), "value": token, "path": "/console"})
        browser.get(address)
        browser.press("Continue")
        browser.wait_for(rf"(?s)Log in on .*Code\s+{code.strip()}\s+Host\s.*Asked from\s+127.0.0.1\s.*records:write")
        browser.press("Approve")
        browser.wait_for("The login is approved")
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, '"isDefault": true' in out) == (0, True), out + err
    assert run_crmctl("records", "count", "people").ok().json() == {"count": 0}
    assert browser.complaints() == []


def test_an_endpoint_is_added_tested_and_replayed(browser: Browser, live: RunningService) -> None:
    outcomes = {0: 500}
    with Receiver(lambda request, number: outcomes.get(number, 200)) as receiver:
        browser.get(live.client.get("/api/v1/webhooks").json()["portalUrl"])
        browser.wait_for("No endpoints yet")
        browser.press("Add an endpoint")
        browser.fill("Address", "http://10.0.0.1/internal")
        browser.press("Add the endpoint")
        browser.wait_for("not a public address")
        browser.fill("Address", receiver.url)
        browser.tick("record.created")
        browser.press("Add the endpoint")
        browser.wait_for("The endpoint is added")
        browser.press("Show the secret")
        secret = browser.wait_for(r"whsec_\S+")[0]
        made = person(live, email="ada@example.com")
        live.client.delete(f"/api/v1/objects/{made['objectId']}/records/{made['id']}")
        receiver.wait_for(1)
        browser.visit("Endpoints")
        browser.press(receiver.url)
        browser.press("record.created")
        browser.wait_for(r"500")
        browser.wait_for("ada@example.com")
        browser.press("Replay")
        browser.wait_for(r"(?s)(sent again|tried now).*succeeded.*webhook-signature")
        browser.press(receiver.url)
        browser.press("Send a test")
        browser.wait_for("succeeded")
        received = list(receiver.received)
        browser.press(receiver.url)
        browser.press("Disable")
        browser.wait_for("Disabled")
        browser.press("Delete")
        browser.press("Delete the endpoint")
        browser.wait_for("The endpoint is deleted")
    # The service may have retried before the replay.
    *created, test = [(request.headers["webhook-event-type"], request.headers["webhook-id"]) for request in received]
    assert len(created) >= 2
    assert len(set(created)) == 1
    assert (created[0][0], test[0]) == ("record.created", webhooks.TEST_EVENT)
    assert test[1] != created[0][1]
    for request in received:
        standardwebhooks.Webhook(secret).verify(request.body, request.headers)
    assert [entry for entry in browser.complaints() if "400 (Bad Request)" not in entry] == []


def violations(browser: Browser, *rules: str, without_header: bool = False) -> Any:
    """Return axe's violations of these rules, or of all, with their elements."""
    if browser.script("return !window.axe"):
        browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE})
    # No page contains frames or media to wait for.
    options = {"resultTypes": ["violations"], "iframes": False, "preload": False} | ({"runOnly": list(rules)} if rules else {})
    return browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(arguments[0], arguments[1]).then("
        "found => done(found.violations.map(each => [each.id, each.nodes.map(node => node.html)])));",
        {"exclude": ["header"]} if without_header else {"include": ["html"]},
        options,
    )


KEYBOARD = """
const stops = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
const place = document.querySelector(arguments[0]);
const wanted = [...place.querySelectorAll(stops)].filter(each => each.tabIndex >= 0);
// Tab stops at the chosen one of a group, or at the first.
const skipped = element => {
  const group = element.type === "radio" ? [...document.querySelectorAll(`[name="${element.name}"]`)] : [element];
  return (group.find(each => each.checked && each.type === "radio") || group[0]) !== element;
};
window.unreached = new Set(wanted.filter(each => each.checkVisibility() && !each.disabled && !skipped(each)));
window.dim = [];
document.activeElement.blur();
if (place.id === "main") place.focus();
document.addEventListener("focusin", event => {
  window.unreached.delete(event.target);
  const rings = getComputedStyle(event.target).outlineStyle === "solid" || !event.target.matches(":focus-visible");
  if (!rings && event.target !== place) window.dim.push(event.target.outerHTML);
});
// Date and time fields have a stop for each of their parts.
return window.unreached.size + 8 * document.querySelectorAll("input[type^=date]").length + 2;
"""
EMPTY = ("", "/records/deals", "/records/deals/deleted", "/activities", "/files", "/reports", "/workflows", "/webhooks")
"""Pages that show a hint while there is no data."""
TITLES = "document.querySelectorAll('h1').length"


def check_page(browser: Browser, live: RunningService, path: str, *, with_header: bool = False) -> None:
    """Check a page for screen readers, in both schemes, wide and narrow, and by Tab alone; the common header only if asked to."""
    browser.scheme("light")
    browser.size(DESK)
    browser.get(f"{live.base_url}/console{path}")
    unlabelled, titles = browser.script(f"{UNLABELLED.replace('return', 'const unlabelled =')} return [unlabelled, {TITLES}]")
    assert (unlabelled, titles) == ([], 1), path
    assert violations(browser, without_header=not with_header) == [], path
    browser.type(Keys.TAB * browser.script(KEYBOARD, "body" if with_header else "main"))
    assert browser.script("return [[...window.unreached].map(each => each.outerHTML), window.dim]") == [[], []], path
    assert too_wide(browser) == [], path
    # The scheme only changes colours.
    browser.scheme("dark")
    assert violations(browser, "color-contrast", without_header=not with_header) == [], path
    browser.size(NARROW)
    assert too_wide(browser) == [], path
    assert violations(browser, without_header=not with_header) == [], path
    browser.scheme("light")
    assert violations(browser, "color-contrast", without_header=not with_header) == [], path


def too_wide(browser: Browser) -> Any:
    """Return the width of a page that scrolls sideways, and the elements that are cut off."""
    measured = CUT_OFF.replace("return", "const cut =")
    return browser.script(f"{measured} const wide = document.documentElement.scrollWidth; return wide > innerWidth ? [wide, ...cut] : cut;")


@pytest.mark.campaign
@pytest.mark.long
def test_every_page_works_by_keyboard_in_light_and_dark_and_on_a_phone(browser: Browser, live: RunningService) -> None:
    script = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": AXE})
    for path in EMPTY:
        check_page(browser, live, path, with_header=path == "")
    furnished = furnish(live)
    assert unknown_pages(live, furnished) == set()
    for path in [addresses[0] for addresses in furnished.paths.values()]:
        check_page(browser, live, path)
    browser.driver.delete_all_cookies()
    for path in furnished.signed_out:
        check_page(browser, live, path, with_header=True)
    browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    answered = re.compile(r"status of (400|403|404) ")
    assert [entry for entry in browser.complaints() if not answered.search(entry)] == []


def test_ticking_a_box_and_choosing_everything_exclude_each_other(browser: Browser, live: RunningService) -> None:
    chosen = "return [...document.querySelectorAll('form.form :checked')].map(each => each.value)"
    for path, box, everything, only in (
        ("keys/new", "records:read", "Full access", "scopes"),
        ("webhooks/new", "record.created", "All event types", "some"),
    ):
        browser.get(f"{live.base_url}/console/{path}")
        assert browser.script(chosen) == []
        browser.tick(box)
        assert browser.script(chosen) == [only, box]
        browser.tick(everything)
        assert browser.script(chosen) == [browser.field(everything).get_attribute("value")]
        browser.tick(box)
        assert browser.script(chosen) == [only, box]


def test_links_from_other_sites_work_and_forms_do_not(browser: Browser, live: RunningService) -> None:
    browser.get(f"data:text/html,<main><a href='{live.base_url}/console/webhooks'>Look here</a></main>")
    browser.press("Look here")
    browser.wait_for("No endpoints yet")
    form = f"<form method=post action='{live.base_url}/console/keys'><input name=name value=stolen><input name=access value=full>"
    browser.get(f"data:text/html,<main>{form}<button>Win a prize</button></form></main>")
    browser.press("Win a prize")
    browser.wait_for("Sign in")
    browser.get(f"{live.base_url}/console/keys")
    browser.wait_for("First key|test")
    assert "stolen" not in browser.text


def test_the_keyboard_is_enough(browser: Browser, live: RunningService) -> None:
    browser.get(f"{live.base_url}/console/keys/new")
    browser.type(Keys.TAB)
    assert browser.focused().text == "Skip to the content"
    browser.type(Keys.ENTER)
    assert browser.script("return document.activeElement.id") == "main"
    browser.tab_to("Name").send_keys("typed")
    assert browser.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.tab_to("Full access").send_keys(Keys.ARROW_DOWN)
    assert browser.script("return document.querySelector('[name=access]:checked').value") == "scopes"
    browser.tab_to("members:read").send_keys(Keys.SPACE)
    browser.tab_to("Create the key").send_keys(Keys.ENTER)
    browser.wait_for("only time the key is shown")
    browser.wait_for("members:read")
    browser.size(NARROW)
    browser.get(f"{live.base_url}/console/keys")
    browser.tab_to("Menu").send_keys(Keys.ENTER)
    browser.type(Keys.TAB)
    assert browser.focused().text == "Overview"
    browser.type(Keys.ESCAPE)
    assert browser.focused().text == "Menu"


def test_actions_are_added_with_the_keyboard_and_enter_in_a_field_saves_them(browser: Browser, live: RunningService) -> None:
    browser.get(f"{live.base_url}/console/workflows/new")
    browser.tab_to("Name").send_keys("Greet")
    browser.tab_to("New action").send_keys(Keys.ARROW_DOWN)
    browser.tab_to("Add the action").send_keys(Keys.ENTER)
    browser.wait_for_focus("Action 1")
    browser.tab_to("Job title").send_keys("Analyst")
    assert violations(browser) == []
    browser.type(Keys.ENTER)
    browser.wait_for("The workflow is created")
    browser.wait_for(r"Change the record of People\s+Record\s+the triggering record\s+Job title\s+Analyst")


def test_a_refused_form_puts_visible_focus_on_the_problem(browser: Browser, live: RunningService) -> None:
    for path, button, words in (
        ("records/people/new", "Create", "nothing was saved"),
        (f"records/people/{person(live)['id']}", "Add", "title must not be empty"),
        ("keys/new", "Create the key", "at least one scope"),
        ("workflows/new", "Save", "at least one action"),
    ):
        browser.get(f"{live.base_url}/console/{path}")
        browser.script(
            "document.querySelectorAll('[name=\"f:score\"], [name=name]').forEach(each => { each.value = 'x' });"
            "document.querySelectorAll('details').forEach(each => { each.open = true });"
            "document.querySelectorAll('form').forEach(each => { each.noValidate = true })"
        )
        browser.press(button)
        browser.wait_for(f"(?i){words}")
        for scheme in ("light", "dark"):
            browser.scheme(scheme)
            browser.wait_for_focus(f"(?i).*{words}")
            assert browser.script("return getComputedStyle(document.activeElement).outlineStyle") == "solid", path
        assert violations(browser) == [], path


def test_a_reference_is_searched_while_typing(browser: Browser, live: RunningService) -> None:
    for name in ("Acme", "Acorn", "Other"):
        live.client.post(f"/api/v1/objects/{live.object_id('companies')}/records", json={"data": {"name": name}})
    browser.get(f"{live.base_url}/console/records/people/new")
    browser.tab_to("Company").send_keys("ac")
    browser.wait_for("Acorn")
    assert violations(browser) == []
    browser.type(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert browser.focused().get_attribute("value") == "Acme"
    browser.tab_to("Create").send_keys(Keys.ENTER)
    browser.wait_for("The record is created")
    browser.wait_for("Acme")
    browser.get(f"{live.base_url}/console/records/people")
    browser.click("//summary[starts-with(normalize-space(), 'Filter')]")
    browser.choose("Attribute of condition 1", "company")
    browser.choose("Operator of condition 1", "equals")
    browser.field("Value of condition 1").send_keys("acm")
    browser.click("//li[@role='option'][starts-with(., 'Acme')]")
    browser.press("Filter")
    browser.wait_for("Company is Acme")
    browser.wait_for("1–1 of 1")


def test_a_list_shows_nineteen_records_at_once_and_offers_fitting_operators(browser: Browser, live: RunningService) -> None:
    data = [{"data": {"email": f"{number}@example.com"}} for number in range(25)]
    assert live.client.post(f"/api/v1/objects/{live.object_id('people')}/records/bulk", json={"records": data}).is_success
    browser.size((1440, 900))
    browser.get(f"{live.base_url}/console/records/people")
    rows = "return [...document.querySelectorAll('.records tbody tr')].filter(row => row.getBoundingClientRect().bottom <= 900).length"
    assert browser.script(rows) >= 19
    assert browser.script("return document.querySelector('.wide').clientWidth") > 1100
    offered = """
    document.querySelector("details").open = true;
    const where = document.getElementById("where-1");
    where.value = "subscribed"; where.dispatchEvent(new Event("change"));
    return [...document.getElementById("op-1").options].map(option => option.value);
    """
    assert browser.script(offered) == ["isEmpty", "isNotEmpty", "isTrue", "isFalse"]
    browser.get(f"{live.base_url}/console/records/people?where=score&op=lessThan&value=1")
    assert browser.script("return document.getElementById('where-1').value") == "score"
    assert browser.script(offered) == ["isEmpty", "isNotEmpty", "isTrue", "isFalse"]
    for slug, kind, first in (("status", "text", "new"), ("birthday", "date", None), ("email", "text", None)):
        choose = offered.replace("subscribed", slug).partition("return")[0]
        browser.script(choose)
        shown = "const value = document.getElementById('value-1'); return [value.type, value.list?.options[0].value ?? null];"
        assert browser.script(shown) == [kind, first]


def test_records_are_searched_from_every_page_while_typing(browser: Browser, live: RunningService) -> None:
    person(live, name={"first": "Katharina", "last": "Müller"}, email="km@example.com")
    browser.get(f"{live.base_url}/console/keys")
    browser.tab_to("Search all records").send_keys("muller kath")
    browser.wait_for("Katharina Müller")
    assert violations(browser) == []
    browser.type(Keys.ARROW_DOWN, Keys.ENTER)
    browser.wait_for("km@example.com")
    browser.tab_to("Search all records").send_keys("muller", Keys.ENTER)
    browser.wait_for("Results for “muller”")
    browser.press("Katharina Müller")
    browser.wait_for("Activities")
    assert browser.complaints() == []


def test_the_search_box_begins_where_the_page_begins(browser: Browser, live: RunningService) -> None:
    browser.size(NARROW)
    browser.get(f"{live.base_url}/console/keys")
    edges = "return ['#search', '.brand', 'h1'].map(each => document.querySelector(each).getBoundingClientRect().left)"
    assert browser.script(edges) == [16, 16, 16]
    browser.size(WIDE)


def test_rows_are_selected_changed_and_restored_with_the_keyboard(browser: Browser, live: RunningService) -> None:
    for number in range(3):
        person(live, email=f"p{number}@example.com", status="new")
    browser.get(f"{live.base_url}/console/records/people?column=email&column=status")
    browser.tab_to("Select this page").send_keys(Keys.SPACE)
    browser.tab_to("Select p2@example.com").send_keys(Keys.SPACE)
    browser.tab_to("Attribute to change").send_keys("St")
    browser.tab_to("Change…").send_keys(Keys.ENTER)
    browser.wait_for("Change Status of 2 records")
    assert violations(browser) == []
    browser.tab_to("Status").send_keys("cust")
    browser.tab_to("Preview").send_keys(Keys.ENTER)
    browser.wait_for("After")
    assert violations(browser) == []
    browser.press("Change 2 records")
    browser.wait_for("2 records changed")
    browser.get(f"{live.base_url}/console/records/people?column=email&column=status")
    browser.wait_for(r"(?is)p2@example.com\s+new.*p1@example.com\s+Customer")
    browser.driver.back()
    browser.wait_for("2 records changed")
    browser.press("Undo")
    browser.wait_for("The change is undone")
    browser.get(f"{live.base_url}/console/records/people?where=status&op=equals&value=New")
    browser.wait_for("1–3 of 3")


def test_breadcrumbs_return_to_the_unchanged_list(browser: Browser, live: RunningService) -> None:
    for name in ("Ada", "Grace"):
        person(live, name={"first": name}, email=f"{name}@example.com")
    browser.get(f"{live.base_url}/console/records/people?q=ada&sort=email")
    browser.press("Ada")
    browser.wait_for("Timeline")
    browser.press("People")
    browser.wait_for("1–1 of 1")
    assert "sort=email" in browser.driver.current_url


def test_a_portal_session_does_not_open_the_console(browser: Browser, live: RunningService) -> None:
    browser.driver.delete_all_cookies()
    browser.get(link_to(live, PORTAL))
    browser.wait_for("No endpoints yet")
    browser.get(f"{live.base_url}/console/keys")
    browser.wait_for("Sign in")
    browser.get(f"{live.base_url}/portal")
    browser.click("//button[.='Sign out']")
    browser.wait_for("crmctl webhooks portal")
