"""The page in a real browser: drawn without a complaint, alone, and what can be pressed works."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from orchestrator.replay.report.about import About, Window
from orchestrator.replay.report.metrics import Goal
from orchestrator.replay.report.page import write_html
from tests.orchestrator.replay.report import made

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)
POLICIES = ("local", "direct", "relay", "auto")
EVIL = """<img src=x onerror="document.title='run'"><b>&lt;</b>"""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def usual(browser: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the page is that most tests look at; they leave it as it was."""
    path = tmp_path_factory.mktemp("usual") / "out.html"
    _write(path, POLICIES)
    return path.as_uri()


def _write(
    path: Path,
    names: tuple[str, ...],
    *,
    title: str = "Two sites",
    cost: float | None = 3.0,
    site: str = "hami",
) -> None:
    about = About(
        title=title,
        facts=(("topology", f"{site} and far"), ("command", "pdd replay two --html out.html")),
        faults=(Window(text="line cut", at_s=10.0, until_s=13.0),),
    )
    write_html(path, [made.run(name, cost=cost, site=site) for name in names], GOAL, about)


def show(browser: webdriver.Chrome, uri: str) -> None:
    if browser.current_url != uri:  # the five megabytes of plotly take a moment
        browser.get_log("browser")
        browser.get(uri)


def test_it_is_drawn_without_a_complaint_and_asks_nobody(
    browser: webdriver.Chrome, usual: str
) -> None:
    show(browser, usual)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    figures = browser.find_elements(By.CSS_SELECTOR, "figure")
    assert len(figures) == 5 + 3 + 2  # distributions, cost, and what is not idle
    for figure in figures:
        plot = figure.find_element(By.CSS_SELECTOR, ".plot")
        assert plot.find_element(By.CSS_SELECTOR, "svg.main-svg").is_displayed()
        assert "relay" in str(plot.get_attribute("aria-label"))
    for figure in figures[:5]:
        assert len(figure.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace")) == len(POLICIES)
    for figure in figures[5:8]:
        assert len(figure.find_elements(By.CSS_SELECTOR, ".barlayer .point")) == len(POLICIES)
    for figure in figures[8:]:
        assert figure.find_elements(By.CSS_SELECTOR, ".shapelayer path")  # the fault's window
        assert "line cut" in figure.text
    assert "Idle all the time: Line far → hami." in browser.page_source


def test_a_picture_of_it_is_not_empty(browser: webdriver.Chrome, usual: str) -> None:
    show(browser, usual)
    picture = _picture(browser)
    assert picture.startswith(PNG)
    assert len(picture) > 50_000  # a page of one colour takes some 5000


def test_nothing_is_wider_than_the_window(browser: webdriver.Chrome, usual: str) -> None:
    show(browser, usual)
    fits = """
        const ends = [...document.querySelectorAll("svg.main-svg")].map(
            (svg) => svg.getBoundingClientRect().right);
        const {scrollWidth, clientWidth} = document.documentElement;
        return scrollWidth <= clientWidth && Math.max(...ends) <= clientWidth;
    """
    try:
        for width in (390, 800, 1600):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            WebDriverWait(browser, 20).until(lambda browser: browser.execute_script(fits))
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_another_request_has_another_timeline(browser: webdriver.Chrome, usual: str) -> None:
    show(browser, usual)
    select = Select(browser.find_element(By.ID, "request"))
    assert len(select.options) == 4
    select.select_by_value("r0")
    first = _bars(browser)
    select.select_by_value("r20")
    assert _timeline(browser).get_attribute("data-request") == "r20"
    assert _bars(browser) != first
    assert "Request r20" in browser.find_element(By.ID, "request-table").text
    names = browser.execute_script("return arguments[0].data.map(t => t.name)", _timeline(browser))
    assert {"prefill", "KV transfer", "relay decode", "handoff", "main decode"} <= set(names)
    start = _range(browser)
    browser.find_element(By.CSS_SELECTOR, "[data-zoom=all]").click()
    assert _range(browser)[1] > start[1]
    browser.find_element(By.CSS_SELECTOR, "[data-zoom=start]").click()
    assert _range(browser) == start


def test_requests_are_found_by_their_name(browser: webdriver.Chrome, usual: str) -> None:
    show(browser, usual)
    find = browser.find_element(By.ID, "find")
    find.send_keys("r10")
    options = Select(browser.find_element(By.ID, "request")).options
    assert [option.get_attribute("value") for option in options] == ["r10"]
    assert _timeline(browser).get_attribute("data-request") == "r10"
    find.send_keys("000")
    options = Select(browser.find_element(By.ID, "request")).options
    assert [option.text for option in options] == ["no request is called so"]
    find.send_keys(Keys.BACKSPACE * len("r10000"))
    assert len(Select(browser.find_element(By.ID, "request")).options) == 4


def test_a_policy_can_be_taken_away_and_the_axis_changed(
    browser: webdriver.Chrome, usual: str
) -> None:
    show(browser, usual)
    plot = browser.find_element(By.CSS_SELECTOR, "#cdfs .plot")
    button = browser.find_element(By.CSS_SELECTOR, "[data-policy=direct]")
    traces = "return arguments[0].data.map(trace => trace.name)"
    assert browser.execute_script(traces, plot) == list(POLICIES)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert browser.execute_script(traces, plot) == ["local", "relay", "auto"]
    button.click()
    assert browser.execute_script(traces, plot) == list(POLICIES)
    kind = "return arguments[0].layout.xaxis.type"
    assert browser.execute_script(kind, plot) == "log"
    browser.find_element(By.CSS_SELECTOR, "[data-axis=linear]").click()
    assert browser.execute_script(kind, plot) == "linear"
    browser.find_element(By.CSS_SELECTOR, "[data-axis=log]").click()
    assert browser.execute_script(kind, plot) == "log"


def test_dark_is_dark(browser: webdriver.Chrome, usual: str) -> None:
    show(browser, usual)
    grey = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    line = "return arguments[0].data[0].line.color"
    plot = browser.find_element(By.CSS_SELECTOR, "#cdfs .plot")
    light = browser.execute_script(line, plot)
    assert min(browser.execute_script(grey)) > 200
    try:
        _prefer(browser, "dark")
        assert max(browser.execute_script(grey)) < 60
        assert browser.execute_script(line, plot) != light  # drawn anew
    finally:
        _prefer(browser, "light")


def test_names_are_shown_and_not_run(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    _write(path, (EVIL, "relay"), title=EVIL, site=EVIL)
    show(browser, path.as_uri())
    assert browser.get_log("browser") == []
    assert browser.title == EVIL
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert browser.find_element(By.CSS_SELECTOR, ".card h3").text == EVIL
    assert browser.find_element(By.CSS_SELECTOR, "h1").text == EVIL
    assert browser.find_elements(By.CSS_SELECTOR, "svg a, svg image") == []


def test_no_prices_and_one_policy(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    _write(path, ("mine",), cost=None)
    show(browser, path.as_uri())
    assert browser.get_log("browser") == []
    assert "there is no cost" in browser.find_element(By.ID, "money-lead").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#costs figure")) == 1


def test_what_was_decided_of_roles_is_told(
    browser: webdriver.Chrome, usual: str, tmp_path: Path
) -> None:
    show(browser, usual)
    assert not browser.find_element(By.ID, "roles").is_displayed()
    path = tmp_path / "out.html"
    lost = f"at 130 s site {EVIL} is lost"
    runs = [made.run("fixed"), replace(made.run("follows"), roles=(lost, "at 275 s it is back"))]
    about = About(title="Roles", facts=(), faults=())
    write_html(path, runs, replace(GOAL, second_token_s=0.5), about)
    show(browser, path.as_uri())
    assert browser.get_log("browser") == []
    told = browser.find_element(By.ID, "decisions").text.splitlines()
    assert told == ["follows", lost, "at 275 s it is back"]
    assert "second token 500 ms" in browser.find_element(By.ID, "facts").text


def _timeline(browser: webdriver.Chrome) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, "#timeline .plot")


def _bars(browser: webdriver.Chrome) -> list[str]:
    paths = _timeline(browser).find_elements(By.CSS_SELECTOR, ".barlayer .point path")
    return [str(path.get_attribute("d")) for path in paths]


def _range(browser: webdriver.Chrome) -> list[float]:
    found: list[float] = browser.execute_script(
        "return arguments[0].layout.xaxis.range", _timeline(browser)
    )
    return found


def _prefer(browser: webdriver.Chrome, scheme: str) -> None:
    features: list[dict[str, Any]] = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _picture(browser: webdriver.Chrome) -> bytes:
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    return base64.b64decode(taken["data"])
