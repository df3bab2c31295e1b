"""What a team does in the console, in Chromium: every test is a journey, by keyboard or mouse, on one service that fills up.

The other journeys are in test_browser.py: keys, endpoints and replays, global search, selecting rows, breadcrumbs, references, workflows.
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
from tests.service.console.test_browser import WIDE, Browser, chromium, violations
from tests.support.service import RunningService, running_service

__all__ = ["chromium"]

pytestmark = [pytest.mark.needs("chromium", "chromedriver"), pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("team"), background=False, development=True) as service:
        yield service


@pytest.fixture
def browser(chromium: Browser, team: RunningService) -> Browser:
    """Signed in to the console of the team."""
    chromium.scheme("light")
    chromium.size(WIDE)
    chromium.driver.delete_all_cookies()
    chromium.complaints()
    chromium.get(link_to(team))
    chromium.wait_for("Log in from a terminal")
    return chromium


def add(service: RunningService, slug: str, **data: Any) -> str:
    answer = service.client.post(f"/api/v1/objects/{service.object_id(slug)}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(service: RunningService, slug: str, record_id: str) -> Any:
    return service.client.get(f"/api/v1/objects/{service.object_id(slug)}/records/{record_id}").json()["data"]


def cell(browser: Browser, label: str, row: str) -> Any:
    path = f"//tr[th[normalize-space()='{row}']]/td[@data-label='{label}']"
    return browser._wait(lambda: browser.driver.find_element(By.XPATH, path), f"no cell {label} of {row}")


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


def test_a_cell_is_edited_with_the_keyboard_and_nobody_loses_a_change(browser: Browser, team: RunningService) -> None:
    both = add(team, "people", name={"first": "Both"}, email="both@example.com", score=1, status="new")
    address = f"/api/v1/objects/{team.object_id('people')}/records/{both}"
    browser.get(f"{team.base_url}/console/records/people?column=name&column=score&column=status&q=both")
    browser.tab_to("Both").send_keys(Keys.ARROW_RIGHT)
    browser.type(Keys.ENTER)
    browser.wait_for_focus("Score")
    # Someone saves another attribute: both changes stay.
    team.client.patch(address, json={"data": {"status": "customer"}}).raise_for_status()
    browser.type(Keys.BACKSPACE, "2", Keys.ENTER)
    browser.wait_for("Saved")
    assert {name: read(team, "people", both)[name] for name in ("score", "status")} == {"score": 2, "status": "customer"}
    browser.tab_to("Both").send_keys(Keys.ARROW_RIGHT)
    browser.type(Keys.ENTER)
    browser.wait_for_focus("Score")
    # Someone saves the same attribute: the form says who, when and what.
    team.client.patch(address, json={"data": {"score": 7}}).raise_for_status()
    browser.type(Keys.BACKSPACE, "3", Keys.ENTER)
    browser.wait_for(r"First key \(on \d+ \w+ \d{4}, \d\d:\d\d UTC\) saved this record")
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
