"""The page of a sweep in a real browser: drawn without a complaint, and what can be pressed."""

from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from orchestrator.replay.sweep.axes.grammar import Axis
from orchestrator.replay.sweep.report.page import write_html
from orchestrator.replay.sweep.swept import Swept
from tests.orchestrator.replay.sweep.grids import DISTANCE, PRICE, SPEED, grid

EVIL = """<img src=x onerror="document.title='run'"><b>&lt;</b>"""


def show(browser: webdriver.Chrome, path: Path, swept: Swept) -> None:
    write_html(path, swept)
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def traces(browser: webdriver.Chrome, place: str) -> list[list[dict[str, Any]]]:
    """Of each plot in a place, what Plotly was given."""
    script = """
        return [...document.querySelectorAll(`#${arguments[0]} .plot`)].map((plot) =>
            plot.data.map(({type, name, x, y, z, text}) => ({type, name, x, y, z, text})));
    """
    found: list[list[dict[str, Any]]] = browser.execute_script(script, place)
    return found


def words(browser: webdriver.Chrome, place: str) -> str:
    return browser.find_element(By.ID, place).text


def test_two_axes(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, tmp_path / "two.html", grid(lambda speed, km: speed / 10 - km / 4000))
    assert "relay pays more than local at 6 of 9 points." in words(browser, "verdict")
    ((map_of_relay, line),) = traces(browser, "maps")
    assert (map_of_relay["type"], line["type"]) == ("heatmap", "contour")
    assert map_of_relay["text"][0] == ["+0.5%", "+2.0%", "+8.0%"]  # at 0 km
    assert map_of_relay["text"][2] == ["−1.5%", "0.0%", "+6.0%"]  # at 8000 km
    assert browser.find_elements(By.CSS_SELECTOR, "#maps .contourlayer path")
    along_speed, along_distance = traces(browser, "evens")
    assert along_speed[0]["x"] == list(DISTANCE.values)
    assert along_speed[0]["text"][0] == "everywhere"
    assert along_speed[0]["text"][2] == "from 20 Gbps on"
    assert along_distance[0]["text"] == ["up to 2000 km", "up to 8000 km", "everywhere"]
    assert along_distance[0]["y"] == [2000, 8000, 0]
    assert "from 20 Gbps on" in words(browser, "even-table")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#points tbody tr")) == 9


def test_another_figure_has_other_maps(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, tmp_path / "two.html", grid(lambda speed, km: speed))
    Select(browser.find_element(By.ID, "figure")).select_by_visible_text("TTFT, P90")
    near, far = traces(browser, "maps")
    assert len(near) == 1  # nothing to break even with
    assert near[0]["text"][0] == ["10 ms"] * 3
    assert far[0]["text"][0][2] == "5.56 ms"
    assert "5.56 ms" in words(browser, "points")


def test_one_axis_is_a_curve(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, tmp_path / "one.html", grid(lambda speed: speed - 20, axes=(SPEED,)))
    ((relay,),) = traces(browser, "maps")
    assert (relay["type"], relay["x"]) == ("scatter", list(SPEED.values))
    assert relay["text"] == ["−15%", "0.0%", "+60%"]
    assert browser.find_elements(By.CSS_SELECTOR, "#maps .shapelayer path")  # the break-even
    assert "from 20 Gbps on" in words(browser, "even-table")


def test_a_third_axis_is_chosen(browser: webdriver.Chrome, tmp_path: Path) -> None:
    axes: tuple[Axis, ...] = (SPEED, DISTANCE, PRICE)
    show(browser, tmp_path / "three.html", grid(lambda _, __, price: price * 10 - 15, axes=axes))
    assert traces(browser, "maps")[0][0]["text"][0] == ["−5.0%"] * 3
    assert traces(browser, "evens") == []  # nowhere on this slice
    Select(browser.find_element(By.ID, "slice")).select_by_visible_text("2/h")
    assert traces(browser, "maps")[0][0]["text"][0] == ["+5.0%"] * 3
    assert traces(browser, "evens")[0][0]["text"] == ["everywhere"] * 3


def test_what_local_cannot_do_at_all(browser: webdriver.Chrome, tmp_path: Path) -> None:
    made = grid(lambda speed, km: speed - 19)
    none = {key: {**found, "goodput_per_cost": 0.0} for key, found in made.figures.items()}
    none |= {key: found for key, found in made.figures.items() if key[1] == "relay"}
    swept = Swept(
        title=EVIL,
        facts=((EVIL, EVIL),),
        axes=made.axes,
        policies=made.policies,
        near="local",
        figures=none,
    )
    show(browser, tmp_path / "evil.html", swept)
    assert browser.title == EVIL
    assert words(browser, "facts").count("<img src=x") == 2
    assert "only here" in words(browser, "points")
    assert "relay pays more than local at 9 of 9 points." in words(browser, "verdict")


def test_nothing_is_wider_than_the_window(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, tmp_path / "two.html", grid(lambda speed, km: speed / 10 - km / 4000))
    try:
        for width in (390, 800, 1600):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            fits = "return document.documentElement.scrollWidth <= innerWidth"
            assert browser.execute_script(fits)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
