"""The load test's report in a real browser."""

import pytest

from loadtest.reporting import write_report
from loadtest.reporting.testing import made_result
from tests.integration.browser import browser, opened

__all__ = ["browser"]
pytestmark = pytest.mark.integration
CHARTS = (
    "latency",
    "ttft",
    "latency-time",
    "ttft-time",
    "memory",
    "load",
    "preemptions",
    "arrivals",
    "dispatch",
    "instances",
    "processes",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "plan.yaml").write_text("name: chat-at-the-peak\n")
    return write_report(folder, made_result(duration_s=60))


def test_every_chart_is_drawn_without_a_network_or_a_complaint(browser, report):
    """Also of the Content-Security-Policy, which the console would tell."""
    with opened(browser) as window:
        window.page.goto(report.as_uri())
        for key in CHARTS:
            assert window.painted_share(f"[data-chart={key}] canvas") > 0.005, key
        assert window.requests == [report.as_uri()]
        assert window.complaints == []


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_never_scrolls_sideways(browser, report, width):
    """Wide tables scroll inside their frame."""
    with opened(browser, width=width) as window:
        window.page.goto(report.as_uri())
        for summary in window.page.query_selector_all("summary"):
            summary.click()
        assert window.overflow_px() == 0


def test_dark_is_dark_and_print_is_light(browser, report):
    """By the system's wish, and never grey paper."""
    with opened(browser, dark=True) as window:
        window.page.goto(report.as_uri())
        assert window.background() == "rgb(17, 19, 23)"
        window.page.emulate_media(media="print")
        assert window.background() == "rgb(255, 255, 255)"
        assert window.complaints == []


def test_the_keyboard_reads_values_and_zooms_all_charts_of_the_clock(browser, report):
    """End, then +: the legend tells the moment and the neighbours zoom along."""
    with opened(browser) as window:
        window.page.goto(report.as_uri())
        window.page.focus("[data-chart=memory] .plot")
        window.page.keyboard.press("Home")
        window.page.keyboard.press("Shift+ArrowRight")
        moment = window.page.text_content("[data-chart=memory] .moment")
        assert moment.startswith("at 0:0")
        assert "%" in window.page.text_content("[data-chart=memory] .legend button")
        assert window.page.text_content("[data-chart=load] .moment").startswith("at 0:0")
        window.page.keyboard.press("+")
        window.page.keyboard.press("Escape")
        assert window.complaints == []


def test_a_line_is_hidden_by_its_legend(browser, report):
    """And says so to a screen reader."""
    with opened(browser) as window:
        window.page.goto(report.as_uri())
        button = window.page.locator("[data-chart=latency] .legend button").first
        button.click()
        assert button.get_attribute("aria-pressed") == "false"


def test_a_scaling_decision_tells_its_reason_on_hover(browser, report):
    """At 18 s of the made run."""
    with opened(browser) as window:
        window.page.goto(report.as_uri())
        over = window.page.locator("[data-chart=instances] .u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        window.page.mouse.move(box["x"] + box["width"] * 18 / 64, box["y"] + 40)
        tip = window.page.locator("[data-chart=instances] .tip")
        assert "chat: 1 → 2, utilisation 0.86" in tip.text_content()
        assert tip.is_visible()


def test_a_run_without_requests_opens_too(browser, tmp_path):
    """Nothing to draw is no error."""
    page = write_report(tmp_path, made_result(duration_s=5, rate=0, rows=[]))
    with opened(browser) as window:
        window.page.goto(page.as_uri())
        assert "INVALID" in window.page.text_content(".verdict")
        assert window.complaints == []
