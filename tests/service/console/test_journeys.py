"""29 journeys of a team in the console, in Chromium, by keyboard or mouse, on one service that fills up.

Journeys: edit a cell by mouse; edit one by keyboard while others save; import a workbook and undo it; import a file with bad rows; merge
and separate records; filter; sort and save a view; correct a duplicate and type money; add an activity and restore a deleted record; tag
all matching records and undo it; export for a spreadsheet; go from the overview to a stage on a phone; make an object; change options and
tick them in a filter; read the audit log; make a backup; choose currency and time zone; invite a member; rotate a key; report by currency;
report by month; fill in a workflow. In test_browser.py: search while typing; change selected rows and undo it; look up a reference; go back
to a list as it was; make and revoke a key; follow an endpoint to a replay; write a workflow.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.service.console.conftest import link_to
from tests.service.console.test_browser import NARROW, WIDE, Browser, violations
from tests.support.service import RunningService, running_service
from tests.support.stored_records import add, read

pytestmark = [pytest.mark.campaign, pytest.mark.needs("chromium", "chromedriver")]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("team"), background=False, development=True) as service:
        yield service


@pytest.fixture
def browser(chromium: Browser, team: RunningService) -> Browser:
    """A browser that has signed in to the console of the team."""
    chromium.scheme("light")
    chromium.size(WIDE)
    chromium.driver.delete_all_cookies()
    chromium.complaints()
    chromium.get(link_to(team))
    chromium.wait_for("Log in from a terminal")
    return chromium


def cell(browser: Browser, label: str, row: str) -> Any:
    path = f"//tr[th[normalize-space()='{row}']]/td[@data-label='{label}']"
    return browser._wait(lambda: browser.driver.find_element(By.XPATH, path), f"no cell {label} of {row}")


def wait_for_matches(browser: Browser) -> None:
    browser._wait(lambda: browser.driver.find_element(By.CSS_SELECTOR, ".choices:not([hidden])"), "no matches are shown")


def test_a_cell_is_edited_with_a_double_click(browser: Browser, team: RunningService) -> None:
    ada = add(team, "people", name={"first": "Cell"}, email="cell@example.com", status="new")
    browser.get(f"{team.base_url}/console/records/people?column=name&column=status&q=cell")
    ActionChains(browser.driver).double_click(cell(browser, "Status", "Cell")).perform()
    browser.wait_for_focus("Status")
    assert violations(browser) == []
    browser.type("cust")
    browser.tab_to("Save").send_keys(Keys.ENTER)
    browser.wait_for("Saved")
    assert "q=cell" in browser.driver.current_url
    assert read(team, "people", ada)["status"] == "customer"


def test_a_cell_is_edited_with_the_keyboard_without_losing_changes(browser: Browser, team: RunningService) -> None:
    both = add(team, "people", name={"first": "Both"}, email="both@example.com", score=1, status="new")
    address = f"/api/v1/objects/{team.object_id('people')}/records/{both}"
    browser.get(f"{team.base_url}/console/records/people?column=name&column=score&column=status&q=both")
    browser.tab_to("Both").send_keys(Keys.ARROW_RIGHT)
    browser.type(Keys.ENTER)
    browser.wait_for_focus("Score")
    # Another user saves another attribute: both changes stay.
    team.client.patch(address, json={"data": {"status": "customer"}}).raise_for_status()
    browser.type(Keys.BACKSPACE, "2", Keys.ENTER)
    browser.wait_for("Saved")
    assert {name: read(team, "people", both)[name] for name in ("score", "status")} == {"score": 2, "status": "customer"}
    browser.tab_to("Both").send_keys(Keys.ARROW_RIGHT)
    browser.type(Keys.ENTER)
    browser.wait_for_focus("Score")
    # Another user saves the same attribute: the form shows who, when and what.
    team.client.patch(address, json={"data": {"score": 7}}).raise_for_status()
    browser.type(Keys.BACKSPACE, "3", Keys.ENTER)
    browser.wait_for(r"First key \(on \d+ \w+ \d{4}, \d\d:\d\d\) saved this record")
    browser.wait_for("Saved meanwhile: 7")
    assert read(team, "people", both)["score"] == 7
    browser.tab_to("Save").send_keys(Keys.ENTER)
    browser.wait_for("Timeline")
    assert read(team, "people", both)["score"] == 3


def test_a_workbook_is_imported_and_undone(browser: Browser, team: RunningService, tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (("Name", "Web"), ("Imported One", "one.example"), ("Imported Two", "two.example")):
        book.active.append(row)
    content = io.BytesIO()
    book.save(content)
    (tmp_path / "companies.xlsx").write_bytes(content.getvalue())
    browser.get(f"{team.base_url}/console/records/companies")
    browser.press("Import")
    browser.field("CSV file").send_keys(str(tmp_path / "companies.xlsx"))
    browser.press("Upload")
    browser.wait_for("Import as")
    browser.field("Web").send_keys("Dom")
    assert violations(browser) == []
    browser.press("Check")
    browser.wait_for("2 new, 0 changed, 0 unchanged, 0 failed")
    browser.press("Import")
    browser.wait_for("2 records created")
    browser.press("Imported One")
    browser.wait_for("one.example")
    browser.driver.back()
    browser.wait_for("2 records created")
    browser.press("Undo")
    browser.wait_for("The change is undone")
    assert "Imported One" not in browser.text


def test_two_records_are_merged_and_separated(browser: Browser, team: RunningService) -> None:
    kept = add(team, "companies", name="Merge Kept", domain="kept.example")
    add(team, "companies", name="Merge Other", domain="other.example", employees=5)
    browser.get(f"{team.base_url}/console/records/companies?q=merge")
    browser.tab_to("Select Merge Other").send_keys(Keys.SPACE)
    browser.tab_to("Select Merge Kept").send_keys(Keys.SPACE)
    browser.tab_to("Merge…").send_keys(Keys.ENTER)
    browser.wait_for("Merge 2 companies")
    assert violations(browser) == []
    browser.tick("Domain: other.example")
    browser.press("Merge the records")
    browser.wait_for("The records are merged")
    assert read(team, "companies", kept) == {"name": "Merge Kept", "domain": "other.example", "employees": 5}
    browser.press("Undo")
    browser.wait_for("The change is undone")
    assert read(team, "companies", kept) == {"name": "Merge Kept", "domain": "kept.example"}


def test_filters_accept_values_as_people_write_them(browser: Browser, team: RunningService) -> None:
    company = add(team, "companies", name="Filter AG")
    add(team, "people", name={"first": "Filter"}, email="filter@example.com", status="customer", score=12500.5, company=company)
    for slug, operator, value, chip in (
        ("status", "is", "Customer", "Status is customer"),
        ("score", "is at least", "12,500.50", "Score is at least"),
        ("company", "is", "filter ag", "Company is Filter AG"),
        ("created_at", "is in the last 30", "", "Created is in the last 30 days"),
    ):
        browser.get(f"{team.base_url}/console/records/people?q=filter")
        browser.click("//summary[starts-with(normalize-space(), 'Filter')]")
        browser.choose("Attribute of condition 1", slug)
        browser.choose("Operator of condition 1", operator, by_text=True)
        if value:
            browser.fill("Value of condition 1", value)
        if slug == "company":  # a person presses the button while the matches are shown above it
            wait_for_matches(browser)
        browser.press("Filter")
        browser.wait_for(rf"(?i){chip}")
        browser.wait_for("1–1 of 1")
    browser.press("Created is in the last 30 days")
    browser.wait_for("1–1 of 1")
    assert "op=" not in browser.driver.current_url


def test_a_sorted_list_is_saved_as_a_shared_view(browser: Browser, team: RunningService) -> None:
    for name, employees in (("View A", 2), ("View B", 1)):
        add(team, "companies", name=name, employees=employees)
    browser.get(f"{team.base_url}/console/records/companies?q=view&column=name&column=employees")
    browser.press("Employees")
    browser.wait_for(r"(?s)View B.*View A")
    browser.press("Employees")
    browser.wait_for(r"(?s)View A.*View B")
    browser.click("//summary[.='Save view']")
    browser.fill("Name of the view", "Largest <first>")
    browser.tick("Everyone sees it")
    browser.press("Save the view")
    browser.wait_for("The view is saved")
    browser.press("All companies")
    browser.press("Largest <first>")
    browser.wait_for(r"(?s)View A.*View B")
    browser.press("Delete this view")
    browser.wait_for("The view is deleted")


def test_a_duplicate_is_linked_once_and_amounts_are_typed_as_shown(browser: Browser, team: RunningService) -> None:
    add(team, "people", name={"first": "Original"}, email="same@example.com")
    browser.get(f"{team.base_url}/console/records/people/new")
    browser.fill("Email", "same@example.com")
    browser.press("Create")
    browser.wait_for("(?i)nothing was saved: correct 1 attribute")
    assert browser.text.count("must be unique") == 1
    assert violations(browser) == []
    browser.press("Original")
    browser.wait_for("same@example.com")
    browser.get(f"{team.base_url}/console/records/deals/new")
    browser.fill("Name", "Money deal")
    browser.fill("Amount", "12,500.50")
    browser.fill("Currency", "eur")
    browser.press("Create")
    browser.wait_for("€12,500.50")


def test_a_record_is_restored_with_its_activity(browser: Browser, team: RunningService) -> None:
    add(team, "companies", name="Restored GmbH")
    browser.get(f"{team.base_url}/console/records/companies?q=restored")
    browser.press("Restored GmbH")
    browser.click("//summary[.='Add an activity']")
    browser.fill("Title", "First call")
    browser.press("Add")
    browser.wait_for(r"(?s)First call")
    browser.wait_for("Operator")
    assert "Owner" not in browser.text.partition("Sign out")[2]
    browser.press("Delete…")
    browser.press("Delete the record")
    browser.press("Done")
    browser.press("Deleted")
    browser.press("Restore Restored GmbH")
    browser.wait_for(r"(?s)The record is restored.*First call")


def test_an_action_of_a_workflow_needs_a_value(browser: Browser, team: RunningService) -> None:
    browser.get(f"{team.base_url}/console/workflows/new")
    browser.fill("Name", "Empty")
    browser.choose("New action", "Change the record", by_text=True)
    browser.press("Add the action")
    browser.wait_for("Action 1")
    browser.press("Save")
    browser.wait_for("Action 1: give at least one attribute a value")
    browser.fill("Job title", "Analyst")
    browser.press("Save")
    browser.wait_for(r"The workflow is created(?s:.*)Job title\s+Analyst")


def test_an_option_is_added_and_offered_to_filters(browser: Browser, team: RunningService) -> None:
    browser.visit("Objects")
    browser.press("Deals")
    browser.press("Stage")
    browser.fill("New options", "on hold")
    assert violations(browser) == []
    browser.press("Save")
    browser.wait_for("Saved")
    add(team, "deals", name="Ticked deal", stage="on hold")
    browser.visit("Deals")
    browser.click("//summary[starts-with(normalize-space(), 'Filter')]")
    browser.tick("On hold")
    browser.tick("Negotiation")
    assert violations(browser) == []
    browser.press("Filter")
    browser.wait_for(r"(?s)Stage is negotiation or on hold.*Ticked deal")


def test_the_audit_log_shows_who_changed_what(browser: Browser, team: RunningService) -> None:
    browser.visit("Objects")
    browser.press("Companies")
    browser.press("Industry")
    browser.fill("Name", "Sector")
    browser.press("Save")
    browser.wait_for("Saved")
    browser.visit("Audit log")
    browser.wait_for(r"Attribute updated\s+Sector\s+name: Industry → Sector\s+Operator")


def test_a_changed_form_asks_before_leaving_and_prints_only_content(browser: Browser, team: RunningService) -> None:
    browser.get(f"{team.base_url}/console/records/companies/new")
    asks = "return !window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    assert browser.script(asks) is False
    browser.field("Name").send_keys("Unsaved")
    assert browser.script(asks) is True
    browser.press("Create")
    browser.wait_for("The record is created")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return ['.top', '.trail', '.head .actions'].filter(each => document.querySelector(each).checkVisibility())"
    assert browser.script(shown) == []
    assert browser.script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_backup_is_made(browser: Browser, team: RunningService) -> None:
    browser.visit("Health")
    browser.press("Back up now")
    browser.wait_for("The backup is made")
    assert violations(browser) == []


def test_a_member_is_invited_and_sets_a_password(browser: Browser, team: RunningService) -> None:
    browser.visit("Members")
    browser.press("Invite a member")
    browser.fill("Name", "Grace")
    browser.fill("Email address", "grace@example.com")
    browser.tick("Member")
    browser.press("Invite")
    link = browser.wait_for(r"http\S+/console/password\?code=[\w-]+")[0]
    browser.driver.delete_all_cookies()
    browser.get(link)
    browser.fill("Password", "correct horse battery")
    browser.fill("Repeat password", "correct horse battery")
    browser.press("Set the password")
    browser.wait_for("Grace")
    assert "API keys" not in browser.text


def test_a_key_is_rotated(browser: Browser, team: RunningService) -> None:
    browser.visit("API keys")
    browser.press("Create a key")
    browser.fill("Name", "rotating")
    browser.tick("Full access")
    browser.press("Create the key")
    old = browser.wait_for(r"crs_[\w-]{43}")[0]
    browser.press("Done")
    browser.press("Rotate… rotating")
    assert violations(browser) == []
    browser.choose("The old key works for", "7 days", by_text=True)
    browser.press("Create the new key")
    assert browser.wait_for(r"crs_[\w-]{43}")[0] != old


def test_a_report_sums_currencies_separately(browser: Browser, team: RunningService) -> None:
    for amount, currency in ((1, "EUR"), (2, "EUR"), (4, "USD")):
        add(team, "deals", name=f"Report {amount}", amount={"amount": amount, "currency": currency}, stage="won")
    definition = {"name": "By stage", "objectId": team.object_id("deals")}
    browser.visit("Reports")
    browser.press("New report")
    browser.choose("Records of", "Deals", by_text=True)
    browser.press("Choose")
    browser.fill("Name", str(definition["name"]))
    browser.tick("Figures")
    browser.choose("Group by", "Stage", by_text=True)
    browser.choose("Figure 1", "Sum", by_text=True)
    browser.choose("of attribute", "Amount", by_text=True)
    browser.press("Save")
    browser.press("Run")
    browser.wait_for("completed")
    browser.wait_for("EUR")
    browser.wait_for("USD")


def test_all_matching_records_get_a_tag_and_undo_removes_it(browser: Browser, team: RunningService) -> None:
    rows = [{"data": {"email": f"tagged{number}@example.com", "name": {"first": f"Tagged {number}"}}} for number in range(30)]
    assert team.client.post(f"/api/v1/objects/{team.object_id('people')}/records/bulk", json={"records": rows}).is_success
    browser.get(f"{team.base_url}/console/records/people?q=tagged")
    browser.tick("All 30 records")
    browser.choose("Attribute to change", "tags")
    browser.press("Change…")
    browser.fill("Tags", "fair 2027")
    browser.press("Preview")
    browser.wait_for("And 5 more|And 20 more|After")
    browser.press("Change 30 records")
    browser.wait_for("30 records changed")
    browser.press("Undo")
    browser.wait_for("The change is undone")
    browser.get(f"{team.base_url}/console/records/people?q=tagged&where=tags&op=isNotEmpty&value=")
    browser.wait_for("No record meets these conditions")


def test_an_import_returns_its_bad_rows(browser: Browser, team: RunningService, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("Email,Score\nimported@example.com,5\nnot an address,6\n")
    browser.get(f"{team.base_url}/console/records/people/import")
    browser.field("CSV file").send_keys(str(tmp_path / "people.csv"))
    browser.press("Upload")
    browser.press("Check")
    browser.wait_for("1 new, 0 changed, 0 unchanged, 1 failed")
    browser.press("Import")
    browser.wait_for("1 record created")
    failed = browser.script("return fetch(document.querySelector('a[href*=failed]').href).then(answer => answer.text())")
    assert "not an address" in failed
    assert "imported@example.com" not in failed


def test_a_list_is_exported_for_a_spreadsheet(browser: Browser, team: RunningService) -> None:
    add(team, "deals", name="=SUM(1) export", amount={"amount": 12500.5, "currency": "EUR"})
    browser.get(f"{team.base_url}/console/records/deals?q=export&column=name&column=amount")
    browser.wait_for("1–1 of 1")
    lines = browser.script("return fetch(document.querySelector('a[href*=\"/csv?\"]').href).then(answer => answer.text())").splitlines()
    assert [line.partition(",")[2] for line in lines] == ["name,amount.amount,amount.currency", "'=SUM(1) export,12500.5,EUR"]


def test_a_phone_goes_from_the_overview_to_the_deals_of_a_stage(browser: Browser, team: RunningService) -> None:
    add(team, "deals", name="On the phone", stage="negotiation")
    browser.size(NARROW)
    browser.get(f"{team.base_url}/console")
    browser.click("//main//a[contains(., 'Negotiation')]")
    browser.press("On the phone")
    browser.click("//summary[.='Add an activity']")
    browser.fill("Title", "Called from the train")
    browser.press("Add")
    browser.wait_for(r"(?s)The activity is added.*Called from the train")
    assert browser.script("return document.documentElement.scrollWidth") <= NARROW[0]


def test_an_object_is_created_with_its_first_record(browser: Browser, team: RunningService) -> None:
    browser.visit("Objects")
    browser.press("New object")
    browser.fill("Plural name", "Rooms")
    browser.fill("Singular name", "Room")
    browser.press("Create the object")
    browser.press("New attribute")
    browser.fill("Name", "Floor")
    browser.choose("Type", "Number", by_text=True)
    browser.press("Create the attribute")
    browser.visit("Rooms")
    browser.press("New Room")
    browser.fill("Floor", "1,250")
    browser.press("Create")
    browser.wait_for("1,250")


def test_the_settings_choose_currency_and_time_zone(browser: Browser, team: RunningService) -> None:
    browser.visit("Settings")
    assert violations(browser) == []
    browser.fill("Time zone", "Asia/Tokyo")
    browser.fill("Default currency", "chf")
    browser.press("Save")
    browser.wait_for("Saved")
    browser.get(f"{team.base_url}/console/records/deals/new")
    browser.fill("Name", "In francs")
    browser.fill("Amount", "7.50")
    browser.press("Create")
    browser.wait_for("CHF 7.50")


def test_a_report_by_month_is_read_on_a_phone(browser: Browser, team: RunningService) -> None:
    for day in ("2026-01-31", "2026-02-01", "2026-04-30"):
        add(team, "deals", name=f"Month {day}", close_date=day)
    browser.get(f"{team.base_url}/console/reports/new?object=deals")
    browser.fill("Name", "By month")
    browser.tick("Figures")
    browser.choose("Group by", "Close date", by_text=True)
    browser.choose("Dates by", "month")
    browser.choose("Figure 1", "Number of records", by_text=True)
    browser.press("Save")
    browser.press("Run")
    browser.wait_for(r"Jan 2026\s+1")
    browser.size(NARROW)
    assert violations(browser) == []
    boxes = "[...document.querySelectorAll('.chart text')].map(each => each.getBoundingClientRect())"
    shown = browser.script(f"return {boxes}.map(box => [box.height, box.right])")
    assert all(height >= 11 and right <= NARROW[0] for height, right in shown)
