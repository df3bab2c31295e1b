"""A real browser: the machine's Chromium without a window. Tests that use it are marked `needs("chromium", "chromedriver")`.

with open_browser(tmp_path) as browser:
    browser.get(url)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.patience import PATIENCE
from tests.support.programs import find_program

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
WIDE, NARROW = (1200, 900), (390, 844)


class Browser:
    """What a person does: looks for words, fills in what has a label, presses what has a name."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def get(self, url: str) -> None:
        self.driver.get(url)

    @property
    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until the page's text matches."""
        return WebDriverWait(self.driver, PATIENCE, 0.05, [Exception]).until(
            lambda _: re.search(pattern, self.text), f"no {pattern!r} on the page"
        )

    def press(self, name: str) -> None:
        """The first button or link whose text begins with this."""
        literal = f"'{name}'"
        self._xpath(f"//main//*[(self::button or self::a) and not(@aria-hidden)][starts-with(normalize-space(), {literal})]").click()

    def visit(self, name: str) -> None:
        """A link of the header."""
        self._xpath(f"//header//a[normalize-space()='{name}']").click()

    def field(self, label: str) -> WebElement:
        """What the label beginning with this text belongs to."""
        found = self._xpath(f"//label[starts-with(normalize-space(), '{label}')]")
        own = found.find_elements(By.TAG_NAME, "input")
        return own[0] if own else self.driver.find_element(By.ID, found.get_attribute("for") or "")

    def fill(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def tick(self, label: str) -> None:
        self.field(label).click()

    def type(self, *keys: str) -> None:
        """On whatever has the focus."""
        self.focused().send_keys(*keys)

    def tab_to(self, name: str) -> WebElement:
        """Press Tab until something with this text, label or name has the focus."""
        for _ in range(80):
            self.type(Keys.TAB)
            if self.focused().accessible_name.startswith(name):
                return self.focused()
        raise AssertionError(f"Tab never reaches {name!r}")

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the system would prefer it."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def complaints(self) -> list[str]:
        """What the browser logged since the last call: blocked by the policy, not found, script errors."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def _xpath(self, path: str) -> WebElement:
        found: WebElement = WebDriverWait(self.driver, PATIENCE, 0.05).until(
            lambda driver: driver.find_element(By.XPATH, path), f"nothing on the page is {path}"
        )
        return found


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser that knows nothing yet; its profile goes into `folder`."""
    chromium, chromedriver = find_program("chromium"), find_program("chromedriver")
    options = ChromeOptions()
    options.binary_location = str(chromium)
    for flag in (*FLAGS, f"--user-data-dir={folder / 'chromium'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(str(chromedriver)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
