"""A real headless Chromium for pages of ours: Debian's, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, all that it asked the network for, and all that it complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text) if message.type in ("error", "warning") else None
            ),
        )

    def overflow_px(self) -> int:
        """How far the page reaches beyond the window to the right."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def painted_share(self, selector: str) -> float:
        """The share of a canvas' pixels that something was drawn on."""
        return float(
            self.page.evaluate(
                """(selector) => {
                  const canvas = document.querySelector(selector);
                  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                  let drawn = 0;
                  for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
                  return drawn / (data.length / 4);
                }""",
                selector,
            )
        )


@contextmanager
def opened(browser: Browser, *, width: int = 1280, dark: bool = False) -> Iterator[Watched]:
    """A fresh window: no cookies, no storage of another."""
    context: BrowserContext = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    try:
        yield Watched(context.new_page())
    finally:
        context.close()
