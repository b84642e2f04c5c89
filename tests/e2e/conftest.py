"""A real JupyterLab in a real browser for one test.

Playwright's synchronous half keeps an event loop of its own running, beside which no asynchronous test could run: so
it lives for one test, and tests here are synchronous.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lab import CHROMIUM_FLAGS, VIEWPORT, Lab, LabServer
from playwright.sync_api import BrowserContext, Page, sync_playwright

REPORT = Path(__file__).parent / "report"
_failed = pytest.StashKey[bool]()
_LOG_TAIL = 8000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture
def browser(chromium: Path, tmp_path: Path) -> Iterator[BrowserContext]:
    """A browser with an empty profile; `new_page()` opens further pages."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=chromium,
            headless=True,
            args=list(CHROMIUM_FLAGS),
            viewport=VIEWPORT,
        )
        yield context
        context.close()


@pytest.fixture
def console() -> list[str]:
    """The errors that the page wrote to its console, so far."""
    return []


@pytest.fixture
def page(browser: BrowserContext, console: list[str]) -> Page:
    page = browser.pages[0] if browser.pages else browser.new_page()
    page.on("console", lambda message: console.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: console.append(str(error)))
    return page


@pytest.fixture
def open_lab(
    request: pytest.FixtureRequest, page: Page, console: list[str], tmp_path: Path
) -> Iterator[Callable[..., Lab]]:
    """`open_lab(cells or path, kernel=..., settings=..., env=...)`: a notebook open in a private JupyterLab.

    When the test fails, the server's log and the page's errors are printed and a picture is left in `report/`.
    """
    labs: list[Lab] = []

    def open_lab(
        notebook: Sequence[str] | Path,
        *,
        kernel: str | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Lab:
        server = LabServer(notebook, tmp_path / f"lab-{len(labs)}", kernel=kernel, settings=settings, env=env)
        server.start()
        lab = Lab(server, page if not labs else page.context.new_page())
        labs.append(lab)
        lab.open()
        return lab

    yield open_lab
    for lab in labs:
        if request.node.stash.get(_failed, False):
            name = re.sub(r"\W+", "-", request.node.name).strip("-")
            print(f"--- the server's log\n{lab.server.log[-_LOG_TAIL:]}")
            if not lab.page.is_closed():
                print(f"--- a picture of the page: {lab.screenshot(REPORT / f'{name}.png')}")
        lab.server.stop()
    if console and request.node.stash.get(_failed, False):
        print("--- errors in the browser's console", *console, sep="\n")
