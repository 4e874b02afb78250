"""The page of a plan in a real browser: drawn without a complaint, and true to the plan."""

from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from orchestrator.plan.explain import explain
from orchestrator.plan.problem import Problem
from orchestrator.plan.record import flows_of
from orchestrator.plan.search import Plan, plan
from orchestrator.replay.planning.page import write_html
from orchestrator.replay.report.about import About
from tests.orchestrator.plan.plan_problems import line, pool, problem
from workers.api.messages import MAIN, PREFILL, RELAY

EVIL = """<img src=x onerror="document.title='run'"><b>&lt;</b>"""
NEAR, FAR = frozenset({PREFILL, RELAY}), frozenset({MAIN})


def relayed() -> Problem:
    """KV takes ten seconds over the line, and the second token must come in one."""
    return problem(
        pool("near/x", 4, roles=NEAR),
        pool("far/y", 2, roles=FAR),
        prompt=1000.0,
        output=400.0,
        lines=(line("near", "far", 1e5),),
        second_s=3.0,
    )


def show(browser: webdriver.Chrome, path: Path, found: Plan, title: str = "a plan") -> None:
    write_html(path, found, explain(found), About(title=title, facts=((EVIL, EVIL),)))
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_plan_with_relays(browser: webdriver.Chrome, tmp_path: Path) -> None:
    found = plan(relayed())
    show(browser, tmp_path / "plan.html", found)
    flows = list(flows_of(found.best))
    assert {flow.stage for flow in flows} == {"prefill", "relay", "handoff"}
    drawn = browser.execute_script(
        "const {node, link} = document.querySelector('#picture .plot').data[0];"
        "return link.value.map((v, i) =>"
        " [link.label[i], node.label[link.source[i]], node.label[link.target[i]], v]);"
    )
    assert [tuple(link) for link in drawn] == [tuple(flow) for flow in flows]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#picture .sankey-link")) == len(flows)
    assert browser.find_element(By.ID, "stages").text.split() == ["prefill", "relay", "handoff"]
    roles = browser.find_elements(By.CSS_SELECTOR, "#pools tbody tr")
    post = found.best.assignment.post("near/x")
    assert roles[0].text.split()[:2] == ["near/x", "4"]
    assert f"{post.prefill} {post.relay}" in roles[0].text
    lost = browser.find_elements(By.CSS_SELECTOR, "#rejected tbody tr")
    assert len(lost) == min(12, len(found.tried) - 1)
    assert "is full first" in browser.find_element(By.ID, "binding").text


def test_flows_are_kept_from_place_to_place() -> None:
    best = plan(relayed()).best
    into: dict[str, float] = {}
    out: dict[str, float] = {}
    for flow in flows_of(best):
        out[flow.source] = out.get(flow.source, 0.0) + flow.per_s
        into[flow.target] = into.get(flow.target, 0.0) + flow.per_s
    assert abs(out["requests"] - best.rate) < 1e-6 * best.rate
    for place in out.keys() & into.keys():
        assert abs(out[place] - into[place]) < 1e-6 * best.rate


def test_a_plan_of_nothing_has_a_page(browser: webdriver.Chrome, tmp_path: Path) -> None:
    found = plan(problem(pool("a/x", 2), ttft_s=0.001))
    assert not found.best.rate
    show(browser, tmp_path / "plan.html", found, EVIL)
    assert found.best.why in browser.find_element(By.ID, "verdict").text
    assert not browser.find_elements(By.CSS_SELECTOR, "#picture .plot")
    assert browser.title == EVIL
