"""A real browser: the machine's Chromium without a window. Tests that use it are marked `needs("chromium", "chromedriver")`.

with open_browser(tmp_path) as browser:
    browser.get(url)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
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
    "--js-flags=--no-opt,--no-maglev",
)
"""Pages are too short-lived for optimized scripts: compiling them took a fifth of the processor time."""
WIDE, NARROW = (1200, 900), (390, 844)

LEAVES = """
const element = arguments[0], link = element.closest("a[href]"), form = element.form;
if (link) return link.href.split("#")[0] !== location.href.split("#")[0];
const isSent = form && element.type === "submit" && form.method !== "dialog";
return Boolean(isSent && (form.noValidate || element.formNoValidate || form.checkValidity()));
"""
"""Whether a click on the element opens another page."""
IS_OPEN = "return document.readyState === 'complete' && !('isLeft' in document.documentElement.dataset)"
TABS = """
const shown = (document.querySelector("dialog[open]") || document).querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']");
const seen = new Set();
const stops = [...shown].filter(each => {
  const isFurther = each.type === "radio" && seen.has(each.name);
  if (each.type === "radio") seen.add(each.name);
  return each.tabIndex >= 0 && !each.disabled && !isFurther && each.checkVisibility();
});
const text = each => (each.ariaLabel || each.labels?.[0]?.innerText || each.innerText || "").trim();
const isNext = each => document.activeElement.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING;
const from = Math.max(0, stops.findIndex(isNext));
return [...stops.slice(from), ...stops.slice(0, from)].findIndex(each => text(each).startsWith(arguments[0])) + 1 || 1;
"""
"""Returns how often to press Tab to reach a name, or fewer, because dates and times have several stops."""
T = TypeVar("T")


class Browser:
    """Acts like a user: looks for words, fills in labelled fields, presses named buttons."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def get(self, url: str) -> None:
        self.driver.get(url)

    @property
    def text(self) -> str:
        """Return the visible text without empty lines. The browser's own text takes a thirtieth of the time of WebDriver's."""
        text: str = self._wait(lambda: self.script("return document.body.innerText"), "the page has no text")
        return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t\xa0]+", " ", text)).strip()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the page's text matches."""
        return self._wait(lambda: re.search(pattern, self.text), f"no {pattern!r} on the page")

    def wait_for_focus(self, pattern: str) -> None:
        """Wait until the name or the text of the focused element begins with this."""

        def is_focused() -> bool:
            element = self.focused()
            texts = () if element.tag_name == "body" else (element.accessible_name, element.text)
            return any(re.match(pattern, text) for text in texts)

        self._wait(is_focused, f"{pattern!r} does not get the focus")

    def press(self, name: str) -> None:
        """Press the first button or link whose text begins with this. If it opens another page, wait for that page."""
        self.click(f"//main//*[(self::button or self::a) and not(@aria-hidden)][starts-with(normalize-space(), '{name}')]")

    def visit(self, name: str) -> None:
        """Follow a link of the header."""
        self.click(f"//header//a[normalize-space()='{name}']")

    def click(self, path: str) -> None:
        """Click the element at an XPath. If the click opens another page, wait until that page is complete."""

        def find() -> tuple[WebElement, bool]:
            element = self.driver.find_element(By.XPATH, path)
            leaves = self.script(LEAVES, element)
            if leaves:
                self.script("document.documentElement.dataset.isLeft = ''")
            return element, leaves

        while True:
            element, leaves = self._wait(find, f"there is no {path} on the page")
            try:
                element.click()
                break
            except StaleElementReferenceException:
                continue  # the page has changed meanwhile, and nothing was pressed
        self._wait(lambda: not leaves or self.script(IS_OPEN), f"{path} opens no page")

    def field(self, label: str) -> WebElement:
        """Return the field whose label begins with this text."""

        def labelled() -> WebElement:
            found = self.driver.find_element(By.XPATH, f"//label[starts-with(normalize-space(), '{label}')]")
            own = found.find_elements(By.TAG_NAME, "input")
            return own[0] if own else self.driver.find_element(By.ID, found.get_attribute("for") or "")

        return self._wait(labelled, f"there is no field {label!r}")

    def fill(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def choose(self, label: str, option: str, *, by_text: bool = False) -> None:
        """Choose an option of a select, by its value or by the beginning of its text."""
        test = f"starts-with(normalize-space(), '{option}')" if by_text else f"@value='{option}'"
        self.field(label).find_element(By.XPATH, f".//option[{test}]").click()

    def tick(self, label: str) -> None:
        self.field(label).click()

    def type(self, *keys: str) -> None:
        """Type into the focused element."""
        self.focused().send_keys(*keys)

    def tab_to(self, name: str) -> WebElement:
        """Press Tab until an element with this text, label or name has the focus."""
        self.type(Keys.TAB * self.script(TABS, name))
        for _ in range(200):
            if (element := self.focused()).accessible_name.startswith(name):
                return element
            self.type(Keys.TAB)
        raise AssertionError(f"Tab never reaches {name!r}")

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def scheme(self, name: str) -> None:
        """Set the preferred colour scheme, `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, size: tuple[int, int]) -> None:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def complaints(self) -> list[str]:
        """Return what the browser logged since the last call: blocked by the policy, not found, script errors."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def _wait(self, read: Callable[[], T | None], problem: str) -> T:
        """Call `read` until it returns something; the driver raises many kinds of errors while the page changes."""
        return WebDriverWait(self.driver, PATIENCE, 0.05, [WebDriverException]).until(lambda _: read(), problem)


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Open a browser with a fresh profile in `folder`."""
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
