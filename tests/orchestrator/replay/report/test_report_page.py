"""The page's text: complete, small, and harmless whatever the user's names are."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from orchestrator.replay.outcome import Outcome, Use
from orchestrator.replay.report import curves
from orchestrator.replay.report.about import About, Window
from orchestrator.replay.report.metrics import Goal, Run, summarise
from orchestrator.replay.report.page import page, write_html
from orchestrator.replay.report.record import record
from tests.orchestrator.replay.report import made

GOAL = Goal(ttft_s=1.0, tpot_s=0.05)
ABOUT = About(
    title="Two sites",
    facts=(("seed", "1"), ("command", "pdd replay two --html out.html")),
    faults=(Window(text="line hami-far cut", at_s=10.0, until_s=13.0),),
)
EVIL = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&$title\u2028"""


def embedded(text: str) -> dict[str, Any]:
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(found)
    return data


def test_the_page_is_one_file_that_names_no_other(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    write_html(path, [made.run("direct"), made.run("relay")], GOAL, ABOUT)
    text = path.read_text("utf-8")
    ours = re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", text, flags=re.S)
    assert len(ours) < 0.02 * len(text)  # plotly was found, and is the most of it
    assert not re.search(r'(src|href)=(?!"data:,")|https?://(?!www\.w3\.org)|@import|url\(', ours)
    assert "default-src 'none'" in ours
    data = embedded(text)
    assert [policy["policy"] for policy in data["policies"]] == ["direct", "relay"]
    assert data["facts"] == [["seed", "1"], ["command", "pdd replay two --html out.html"]]
    assert data["faults"] == [{"text": "line hami-far cut", "at_s": 10.0, "until_s": 13.0}]


def test_names_of_the_users_are_never_markup() -> None:
    about = About(title=EVIL, facts=((EVIL, EVIL),), faults=(Window(text=EVIL, at_s=1.0),))
    plain = page([made.run("relay")], GOAL, ABOUT)
    text = page([made.run(EVIL, site=EVIL)], GOAL, about)
    assert text.count("</script") == plain.count("</script")
    assert text.count("<script") == plain.count("<script")
    assert text.count("<img") == plain.count("<img")
    data = embedded(text)
    assert data["title"] == data["policies"][0]["policy"] == data["faults"][0]["text"] == EVIL
    assert f"line:{EVIL}>far" in [use["name"] for use in data["uses"]]


def test_the_page_does_not_grow_with_the_requests() -> None:
    few, many = (page([made.run("relay", n)], GOAL, ABOUT) for n in (4_000, 40_000))
    assert len(many) < len(few) + 100_000


def test_a_distribution_keeps_its_ends_and_its_tail() -> None:
    found = np.sort(np.random.default_rng(1).lognormal(size=50_000))
    curve = curves.cdf(found)
    assert 200 <= len(curve["x"]) <= 500
    assert curve["x"] == sorted(curve["x"])
    assert (curve["y"][0], curve["y"][-1]) == (0.0, 1.0)
    assert curve["x"][-1] == pytest.approx(found[-1], rel=1e-5)
    for part in (0.5, 0.9, 0.99, 0.999):
        at = np.interp(part, curve["y"], curve["x"])
        assert at == pytest.approx(np.quantile(found, part), rel=0.01)


def test_few_requests_are_all_drawn() -> None:
    assert curves.cdf(np.array([1.0, 2.0, 4.0])) == {"x": [1.0, 2.0, 4.0], "y": [0.0, 0.5, 1.0]}
    assert curves.cdf(np.array([])) == {"x": [], "y": []}


def test_use_is_drawn_as_means_that_cover_all_of_it() -> None:
    samples = [0.0, 1.0] * curves.USE_POINTS
    found = curves.use(Use(every_s=0.5, samples=[*samples, 0.25]))
    assert found["every_s"] == 1.5
    assert len(found["samples"]) <= curves.USE_POINTS
    assert found["samples"][0] == pytest.approx(1 / 3, rel=1e-5)
    assert curves.use(Use(every_s=0.5, samples=[0.5]))["samples"] == [0.5]


def test_a_timeline_begins_when_the_request_was_asked() -> None:
    found = curves.timelines([made.run("direct"), made.run("relay")])
    assert found["of"] == 4
    request = found["requests"][1]
    assert (request["name"], request["asked_at"], request["prompt"]) == ("r10", 10.0, 1010)
    direct, relay = request["policies"]
    assert [span[0] for span in direct["spans"]] == [
        "queued", "prefill", "transfer", "stall", "main",
    ]  # fmt: skip
    _, stall, main = direct["spans"][-3:]
    assert stall[2] == pytest.approx(direct["ttft_s"])
    assert stall[3] - stall[2] == pytest.approx(direct["exposed_stall_s"])
    assert main[2:] == [stall[3], pytest.approx(direct["end_to_end_s"])]
    assert "stall" not in [span[0] for span in relay["spans"]]
    assert relay["spans"][0] == ["queued", "hami/compute/0", 0.0, pytest.approx(0.05)]


def test_a_request_that_one_policy_has_no_timeline_of() -> None:
    relay = made.run("relay")
    relay.outcomes[0].spans = None
    [first, *_] = curves.timelines([made.run("direct"), relay])["requests"]
    assert first["policies"][0] is not None
    assert first["policies"][1] is None


def test_at_most_so_many_timelines() -> None:
    found = curves.timelines([made.run("direct", 10 * curves.TIMELINES + 50)])
    assert found["of"] == curves.TIMELINES + 5
    assert len(found["requests"]) <= curves.TIMELINES


def test_the_record_has_plain_values_under_keys_that_stay() -> None:
    runs = [made.run("direct"), Run(policy="none", outcomes=[], uses={}, seconds=0.0)]
    found = orjson.loads(orjson.dumps(record([summarise(r, GOAL) for r in runs], GOAL, ABOUT)))
    assert list(found) == ["title", "facts", "faults", "slo", "policies"]
    assert found["slo"] == {"ttft_s": 1.0, "tpot_s": 0.05, "second_token_s": None}
    direct, none = found["policies"]
    assert list(direct) == [
        "policy", "requests", "finished", "failed", "routes", "seconds", "metrics", "within_slo",
        "goodput_per_s", "output_tokens_per_s", "relay_tokens", "wire_gb", "prefill_hit",
        "main_hit", "from_memory", "from_files", "use", "cost", "cost_per_million_tokens",
        "goodput_per_cost", "roles",
    ]  # fmt: skip
    assert list(direct["metrics"]) == [
        "ttft_s", "second_token_s", "exposed_stall_s", "tpot_s", "end_to_end_s",
    ]  # fmt: skip
    assert list(direct["metrics"]["ttft_s"]) == ["n", "mean", "p50", "p90", "p95", "p99"]
    assert none["metrics"]["ttft_s"]["p50"] is None
    assert none["cost"] is None


def test_nothing_finished_makes_a_page_too() -> None:
    lost = Run(policy="none", outcomes=[Outcome(name="a", asked_at=0.0)], uses={}, seconds=0.0)
    assert embedded(page([lost], GOAL, ABOUT))["cdfs"][0]["ttft_s"] == {"x": [], "y": []}
