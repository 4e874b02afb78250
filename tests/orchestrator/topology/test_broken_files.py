"""Broken topologies: each mistake's exact line."""

from pathlib import Path

import pytest

from orchestrator.topology.document import MOST_BYTES, MOST_VALUES
from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError

GOOD = """\
model: smollm2-135m
sites:
  hami:
    pools:
      compute: {chip: h100, count: 8, parallel: 8, roles: [prefill]}
      relay: {chip: h100, roles: [relay]}
  shenzhen:
    pools:
      memory: {chip: h200, roles: [main]}
links:
  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
gateway: {site: shenzhen}
policy: {route: relay}
"""

# what to replace in the good file, by what, and the lines that must come out
CASES = {
    "unknown chip": (
        "compute: {chip: h100,",
        "compute: {chip: h10,",
        "5:23: sites.hami.pools.compute.chip: unknown chip 'h10'; did you mean 'h100'?",
    ),
    "unknown model": (
        "smollm2-135m",
        "smollm-135m",
        "1:8: model: unknown model 'smollm-135m'; did you mean 'smollm2-135m'?",
    ),
    "unknown role": (
        "[relay]",
        "[relais]",
        "6:35: sites.hami.pools.relay.roles[0]: unknown role 'relais'; did you mean 'relay'?",
    ),
    "unknown engine": (
        "{chip: h200,",
        "{chip: h200, engine: torsh,",
        "9:36: sites.shenzhen.pools.memory.engine: unknown engine 'torsh'; did you mean 'torch'?",
    ),
    "unknown route": (
        "route: relay",
        "route: teleport",
        "13:17: policy.route: unknown route 'teleport'; known: auto, local, direct, relay",
    ),
    "unknown handoff": (
        "route: relay",
        "route: relay, handoff: catchup",
        "13:33: policy.handoff: unknown handoff 'catchup'; did you mean 'catch-up'?",
    ),
    "unknown codec": (
        "route: relay",
        "codec: loseless",
        "13:17: policy.codec: unknown codec 'loseless'; did you mean 'lossless'?",
    ),
    "a codec of another width": (
        "route: relay",
        "codec: int5",
        "13:17: policy.codec: unknown codec 'int5'; did you mean 'int8'?",
    ),
    "unknown launch": (
        "  hami:\n",
        "  hami:\n    launch: remote\n",
        "4:13: sites.hami.launch: unknown launch 'remote'; known: local, agent",
    ),
    "unknown key": (
        "gateway: {site: shenzhen}",
        "gateway: {site: shenzhen, prot: 8000}",
        "12:27: gateway.prot: unknown key 'prot'; did you mean 'port'?",
    ),
    "unknown key at the top": (
        "policy:",
        "polcy:",
        "13:1: polcy: unknown key 'polcy'; did you mean 'policy'?",
    ),
    "unknown key in a pool": (
        "{chip: h200,",
        "{chip: h200, tensor: 2,",
        "9:28: sites.shenzhen.pools.memory.tensor: unknown key 'tensor'; known: chip, count, "
        "instances, parallel, scale_up, roles, engine, simulate, vllm, price, kv_tokens, "
        "block_size, chunk_tokens, slots, kv_store, evict",
    ),
    "unknown key in a link": (
        "bandwidth: 20Gbps",
        "bandwidth: 20Gbps, jiter: 1ms",
        "11:71: links[0].jiter: unknown key 'jiter'; did you mean 'jitter'?",
    ),
    "unknown deadline": (
        "route: relay",
        "deadlines: {prefil: 1s}",
        "13:22: policy.deadlines.prefil: unknown key 'prefil'; did you mean 'prefill'?",
    ),
    "tls": (
        "policy: {route: relay}",
        "security: {tls: {ca: ca.pem, cert: '', key: '{site}.key'}}",
        "13:30: security.tls.cert: must not be empty",
    ),
    "traces to no URL": (
        "policy: {route: relay}",
        "telemetry: {otlp: 'collector:4318'}",
        "13:19: telemetry.otlp: expected a url such as http://127.0.0.1:4318/v1/traces, got the "
        "text 'collector:4318'",
    ),
    "empty roles": (
        "roles: [relay]",
        "roles: []",
        "6:34: sites.hami.pools.relay.roles: give at least one of prefill, relay, main, or leave "
        "roles out: then they are planned",
    ),
    "one role without brackets": (
        "roles: [relay]",
        "roles: relay",
        "6:34: sites.hami.pools.relay.roles: expected a list, got the text 'relay'",
    ),
    "nobody prefills": (
        "roles: [prefill]",
        "roles: [relay]",
        "2:1: sites: no pool can prefill: give one the role prefill",
    ),
    "nobody decodes": (
        "roles: [main]",
        "roles: [relay]",
        "2:1: sites: no pool can decode: give one the role main",
    ),
    "missing model": (
        "model: smollm2-135m\n",
        "",
        "1:1: model: missing; it has no default",
    ),
    "a plan without an answer": (
        "policy: {route: relay}",
        "plan: {prompt: 600}",
        "13:1: plan.output: missing; it has no default",
    ),
    "a prompt that is all known": (
        "policy: {route: relay}",
        "plan: {prompt: 600, output: 9, hits: 1}",
        "13:38: plan.hits: must be below 1, got 1",
    ),
    "roles that change without a gain": (
        "policy: {route: relay}",
        "replan: {gain: 0, dwell: 20s}",
        "13:16: replan.gain: must be above 0, got 0",
    ),
    "missing chip": (
        "{chip: h200, roles: [main]}",
        "{roles: [main]}",
        "9:7: sites.shenzhen.pools.memory.chip: missing; it has no default",
    ),
    "missing bandwidth": (
        ", bandwidth: 20Gbps",
        "",
        "11:5: links[0].bandwidth: missing; it has no default",
    ),
    "wrong type": (
        "count: 8",
        "count: eight",
        "5:36: sites.hami.pools.compute.count: expected a whole number, got the text 'eight'",
    ),
    "a fraction of a chip": (
        "count: 8",
        "count: 8.0",
        "5:36: sites.hami.pools.compute.count: expected a whole number, got 8.0",
    ),
    "yes is not a truth value": (
        "bandwidth: 20Gbps",
        "bandwidth: 20Gbps, emulate: yes",
        "11:80: links[0].emulate: expected true or false, got the text 'yes'",
    ),
    "nothing after the key": (
        "gateway: {site: shenzhen}",
        "gateway:",
        "12:1: gateway: expected keys and values, got nothing",
    ),
    "no chips": (
        "count: 8, parallel: 8",
        "count: 0",
        "5:36: sites.hami.pools.compute.count: must be above 0, got 0",
    ),
    "parallel exceeds count": (
        "count: 8, parallel: 8",
        "count: 8, parallel: 16",
        "5:49: sites.hami.pools.compute.parallel: 1 instances x 16 parallel need 16 chips, but "
        "count is 8",
    ),
    "instances exceed count": (
        "{chip: h200,",
        "{chip: h200, instances: 2,",
        "9:39: sites.shenzhen.pools.memory.instances: 2 instances x 1 parallel need 2 chips, but "
        "count is 1",
    ),
    "parallel over the scale-up domain": (
        "parallel: 8",
        "parallel: 8, scale_up: 4",
        "5:49: sites.hami.pools.compute.parallel: 8 chips do not fit one scale-up domain of 4",
    ),
    "KV not in whole blocks": (
        "{chip: h200,",
        "{chip: h200, kv_tokens: 1000,",
        "9:39: sites.shenzhen.pools.memory.kv_tokens: must be a multiple of block_size (16), got "
        "1000",
    ),
    "simulate without the engine": (
        "{chip: h200,",
        "{chip: h200, simulate: {step: 60ms},",
        "9:38: sites.shenzhen.pools.memory.simulate: only with engine: simulated, but engine is "
        "torch",
    ),
    "vllm without its section": (
        "{chip: h200,",
        "{chip: h200, engine: vllm,",
        "9:36: sites.shenzhen.pools.memory.engine: vllm needs a section vllm beside it: python (of "
        "an environment that has vLLM) or attach (the url of one that runs)",
    ),
    "a vllm section without the engine": (
        "{chip: h200,",
        "{chip: h200, vllm: {python: python3},",
        "9:34: sites.shenzhen.pools.memory.vllm: only with engine: vllm, but engine is torch",
    ),
    "a vllm neither started nor there": (
        "{chip: h200,",
        "{chip: h200, engine: vllm, vllm: {args: [--enforce-eager]},",
        "9:48: sites.shenzhen.pools.memory.vllm: needs one of the two: python (of an environment "
        "that has vLLM) or attach (the url of one that runs)",
    ),
    "a vllm that runs, without its pools": (
        "{chip: h200,",
        "{chip: h200, engine: vllm, vllm: {attach: 'http://127.0.0.1:8100'},",
        "9:48: sites.shenzhen.pools.memory.vllm: attach needs pools: the folder that vLLM was "
        "started with",
    ),
    "a vllm that runs, with arguments": (
        "{chip: h200,",
        "{chip: h200, engine: vllm, vllm: {attach: 'http://a:1', pools: /p, args: [--x]},",
        "9:48: sites.shenzhen.pools.memory.vllm: args and env are for a vLLM that is started, not "
        "attached",
    ),
    "two workers at one vllm": (
        "{chip: h200,",
        "{chip: h200, count: 2, instances: 2, engine: vllm, "
        "vllm: {attach: 'http://a:1', pools: /p},",
        "9:49: sites.shenzhen.pools.memory.instances: workers that attach need a vLLM each: one "
        "pool for each",
    ),
    "pools of a vllm that is started": (
        "{chip: h200,",
        "{chip: h200, engine: vllm, vllm: {python: python3, pools: /p},",
        "9:73: sites.shenzhen.pools.memory.vllm.pools: only with attach: what is started is told "
        "by itself",
    ),
    "an attach that is no url": (
        "{chip: h200,",
        "{chip: h200, engine: vllm, vllm: {attach: here, pools: /p},",
        "9:57: sites.shenzhen.pools.memory.vllm.attach: expected a url such as "
        "http://127.0.0.1:8100, got the text 'here'",
    ),
    "bandwidth ambiguous": (
        "20Gbps",
        "20Gb",
        "11:63: links[0].bandwidth: '20Gb' is ambiguous: write 20Gbps for bits or 20GB/s for "
        "bytes per second",
    ),
    "bandwidth without unit": (
        "20Gbps",
        "20",
        "11:63: links[0].bandwidth: 20 has no unit; write it such as 20Gbps",
    ),
    "bandwidth zero": (
        "20Gbps",
        "0Gbps",
        "11:63: links[0].bandwidth: must be above 0, got 0Gbps",
    ),
    "bandwidth negative": (
        "20Gbps",
        "-20Gbps",
        "11:63: links[0].bandwidth: a bandwidth must not be negative, got '-20Gbps'",
    ),
    "distance infinite": (
        "4000",
        ".inf",
        "11:46: links[0].distance_km: must be a finite number, got inf",
    ),
    "distance and delay": (
        "distance_km: 4000",
        "distance_km: 4000, delay: 25ms",
        "11:5: links[0]: give either distance_km or delay, exactly one of them",
    ),
    "neither distance nor delay": (
        "distance_km: 4000, ",
        "",
        "11:5: links[0]: give either distance_km or delay, exactly one of them",
    ),
    "everything is lost": (
        "20Gbps",
        "20Gbps, loss: 1",
        "11:77: links[0].loss: must be below 1, got 1",
    ),
    "loss is nan": (
        "20Gbps",
        "20Gbps, loss: .nan",
        "11:77: links[0].loss: must be a finite number, got nan",
    ),
    "deadline of zero": (
        "route: relay",
        "deadlines: {cut: 0s}",
        "13:27: policy.deadlines.cut: must be above 0, got 0s",
    ),
    "slo is a truth value": (
        "policy: {route: relay}",
        "slo: {ttft: true}",
        "13:13: slo.ttft: expected a quantity such as 50ms",
    ),
    "link to a stranger": (
        "between: [hami, shenzhen]",
        "between: [hami, shenzen]",
        "11:22: links[0].between[1]: unknown site 'shenzen'; did you mean 'shenzhen'?",
    ),
    "link to itself": (
        "between: [hami, shenzhen]",
        "between: [hami, hami]",
        "11:15: links[0].between: a link joins two sites, but both ends are 'hami'",
    ),
    "link with three ends": (
        "between: [hami, shenzhen]",
        "between: [hami, shenzhen, hami]",
        "11:15: links[0].between: expected 2 values, got 3",
    ),
    "link twice": (
        "gateway:",
        "  - {between: [shenzhen, hami], delay: 1ms, bandwidth: 1Gbps}\ngateway:",
        "12:15: links[1].between: shenzhen and hami are joined already, by links[0]",
    ),
    "gateway nowhere": (
        "gateway: {site: shenzhen}",
        "gateway: {site: beijing}",
        "12:17: gateway.site: unknown site 'beijing'; known: hami, shenzhen",
    ),
    "port out of range": (
        "site: shenzhen}",
        "site: shenzhen, port: 70000}",
        "12:33: gateway.port: must be at most 65535, got 70000",
    ),
    "no relay beside the prefill": (
        "      relay: {chip: h100, roles: [relay]}\n",
        "",
        "12:17: policy.route: route relay needs a pool with the role relay beside the prefill: in "
        "hami",
    ),
    "local without one site for both": (
        "route: relay",
        "route: local",
        "13:17: policy.route: route local needs a site with both prefill and main; there is none",
    ),
    "a name that cannot be a label": (
        "  hami:\n",
        "  ha mi:\n    pools: {}\n  hami:\n",
        "3:3: sites.ha mi: the name 'ha mi' may only have letters, digits, - and _ (at most 40)",
    ),
    "a key that is not text": (
        "policy:",
        "1: 2\npolicy:",
        "13:1: keys must be text, got 1; quote it",
    ),
    "a key twice": (
        "policy:",
        "model: qwen3-8b\npolicy:",
        "13:1: model: this key is here twice, first in line 1",
    ),
    "a tag": (
        "route: relay",
        "route: !secret relay",
        "13:17: policy.route: YAML tags are not supported here, got !secret",
    ),
    "a bracket left open": (
        "roles: [main]}",
        "roles: [main}",
        "9:40: not YAML: expected ',' or ']', but got '}'",
    ),
    "a tab": (
        "policy: {",
        "policy:\n\troute: {",
        "14:1: not YAML: found character '\\t' that cannot start any token",
    ),
    "no model directory": (
        "smollm2-135m",
        "/no/such/model",
        "1:8: model: there is no model directory /no/such/model",
    ),
}


def mistakes(folder: Path, text: str) -> list[str]:
    """The lines that loading the text gives, without the folder's name."""
    file = folder / "broken.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    lines = str(caught.value).splitlines()
    assert lines == [str(mistake) for mistake in caught.value.mistakes]
    return [line.removeprefix(f"{file}:") for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_one_mistake_one_line(tmp_path: Path, name: str) -> None:
    old, new, line = CASES[name]
    assert GOOD.count(old) == 1, "the case does not say which place it means"
    assert mistakes(tmp_path, GOOD.replace(old, new)) == [line]


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    text = """\
model: ./weights
sites:
  hami:
    launch: lokal
    pools:
      compute: {chip: h10, count: 2, parallel: 4, roles: [prefill]}
      compute: {chip: h100, roles: [main]}
  shenzhen:
    pools:
      memory: {chip: h200, roles: [mein], color: red}
links:
  - {between: [hami, shenzen], bandwidth: 20G, jitter: -1ms}
gateway: {site: shenzhen, port: 0}
security: {tls: {ca: 1, cert: 'a.pem', key: 'a.key'}}
slo: {ttft: 2}
"""
    assert mistakes(tmp_path, text) == [
        f"1:8: model: there is no model directory {tmp_path / 'weights'}",
        "4:13: sites.hami.launch: unknown launch 'lokal'; did you mean 'local'?",
        "6:23: sites.hami.pools.compute.chip: unknown chip 'h10'; did you mean 'h100'?",
        "6:48: sites.hami.pools.compute.parallel: 1 instances x 4 parallel need 4 chips, but "
        "count is 2",
        "7:7: sites.hami.pools.compute: this key is here twice, first in line 6",
        "10:36: sites.shenzhen.pools.memory.roles[0]: unknown role 'mein'; did you mean 'main'?",
        "10:43: sites.shenzhen.pools.memory.color: unknown key 'color'; known: chip, count, "
        "instances, parallel, scale_up, roles, engine, simulate, vllm, price, kv_tokens, "
        "block_size, chunk_tokens, slots, kv_store, evict",
        "12:5: links[0]: give either distance_km or delay, exactly one of them",
        "12:22: links[0].between[1]: unknown site 'shenzen'; did you mean 'shenzhen'?",
        "12:43: links[0].bandwidth: '20G' is ambiguous: write 20Gbps for bits or 20GB/s for "
        "bytes per second",
        "12:56: links[0].jitter: a duration must not be negative, got '-1ms'",
        "13:33: gateway.port: must be at least 1, got 0",
        "14:22: security.tls.ca: expected text, got 1",
        "15:13: slo.ttft: 2 has no unit; write it such as 50ms",
    ]


def test_a_site_that_no_link_reaches(tmp_path: Path) -> None:
    text = GOOD.replace(
        "links:", "  beijing:\n    pools:\n      spare: {chip: cpu, roles: [main]}\nlinks:"
    )
    assert mistakes(tmp_path, text) == [
        "10:3: sites.beijing: no link joins it to a site with the role prefill: hami",
        "10:3: sites.beijing: no path of links joins it to the gateway's site 'shenzhen'",
    ]


def test_two_sites_without_any_link(tmp_path: Path) -> None:
    link = "links:\n  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}\n"
    assert mistakes(tmp_path, GOOD.replace(link, "")) == [
        "3:3: sites.hami: no link joins it to a site with the role main: shenzhen",
        "3:3: sites.hami: no path of links joins it to the gateway's site 'shenzhen'",
        "7:3: sites.shenzhen: no link joins it to a site with the role prefill: hami",
        "11:17: policy.route: route relay needs a link from a site with prefill to another with "
        "main",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "1:1: empty: there is nothing in it"),
        ("# nothing\n", "1:1: empty: there is nothing in it"),
        ("- a\n- b\n", "1:1: expected keys and values, got a list"),
        ("just text\n", "1:1: expected keys and values, got the text 'just text'"),
        (
            "a: 1\n--- \nb: 2\n",
            "2:1: not YAML: expected a single document in the stream, but found another document",
        ),
        ("a: *nobody\n", "1:4: not YAML: found undefined alias 'nobody'"),
        ("[" * 700, "1:102: not YAML: nested too deeply"),
    ],
)
def test_not_a_topology_at_all(tmp_path: Path, text: str, line: str) -> None:
    assert mistakes(tmp_path, text) == [line]


def test_an_alias_inside_itself(tmp_path: Path) -> None:
    text = GOOD.replace("gateway: {site: shenzhen}", "gateway: &g {site: shenzhen, host: *g}")
    assert mistakes(tmp_path, text) == [
        "12:10: gateway.host: an alias cannot be inside what it stands for"
    ]


def test_aliases_that_grow_without_bound_cost_nothing(tmp_path: Path) -> None:
    """Ten aliases of ten aliases, thirty deep, would be 1e30 values if they were copied."""
    lines = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)
    ]
    text = "\n".join(lines) + "\n" + GOOD
    assert _one(tmp_path, text) == f"1:1: with its aliases it holds more than {MOST_VALUES} values"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"model: caf\xe9\n")
    for file, reason in [
        (tmp_path / "none.yaml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (latin, "not UTF-8 text: invalid continuation byte"),
    ]:
        with pytest.raises(TopologyError) as caught:
            load_topology(file)
        assert str(caught.value).startswith(f"{file}:1:1: {reason[:20]}")


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    assert mistakes(tmp_path, GOOD.replace("smollm2-135m", "./weights")) == [
        f"1:8: model: {tmp_path / 'weights'} is not a model directory: it has no config.json"
    ]


def test_another_dtype_and_a_simulated_engine(tmp_path: Path) -> None:
    text = "kv_dtype: float32\n" + GOOD.replace("{chip: h200,", "{chip: h200, engine: simulated,")
    assert mistakes(tmp_path, text) == [
        "1:11: kv_dtype: the simulated engine of shenzhen.memory keeps KV in bfloat16: leave it "
        "out, or engine: torch"
    ]


@pytest.mark.parametrize("codec", ["int8", "lossy"])
def test_a_codec_that_rounds_and_a_simulated_engine(tmp_path: Path, codec: str) -> None:
    text = GOOD.replace("{chip: h200,", "{chip: h200, engine: simulated,")
    file = tmp_path / "both.yaml"
    file.write_text(text.replace("route: relay", f"codec: {codec}"))
    with pytest.raises(TopologyError) as refused:
        load_topology(file)
    assert str(refused.value).splitlines() == [
        f"{file}:13:17: policy.codec: {codec} may round KV, and the simulated engine of "
        "shenzhen.memory takes no other bits than its own: lossless, or engine: torch"
    ]
    file.write_text(text)
    assert load_topology(file).policy.codec == "lossless"


def _one(tmp_path: Path, text: str) -> str:
    (mistake,) = mistakes(tmp_path, text)
    return mistake


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a:\n%YAML 9.9\n  b: 2", "KeyError"),
        ("%YAML 1.3\n---\na: 08", "AssertionError"),
        ('a: "\\Uffffffff"', "OverflowError"),
    ],
)
def test_what_ruamel_itself_stumbles_over(tmp_path: Path, text: str, error: str) -> None:
    assert _one(tmp_path, text) == f"1:1: not YAML that can be read ({error})"


@pytest.mark.parametrize("opening", ["[", "{a: ", "[{a: ", "- ", "- - ", "? "])
def test_depth_is_bounded_before_it_costs_time(tmp_path: Path, opening: str) -> None:
    """Its scanner takes the square of the depth: a megabyte of brackets would take hours."""
    deep = opening * (MOST_BYTES // len(opening))
    assert "nested too deeply" in _one(tmp_path, deep[: MOST_BYTES - 1])


def test_size_is_bounded(tmp_path: Path) -> None:
    text = GOOD + "#" * MOST_BYTES
    assert _one(tmp_path, text) == f"1:1: larger than {MOST_BYTES} bytes"


def test_an_anchor_that_is_set_again_is_no_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    file = tmp_path / "again.yaml"
    file.write_text(GOOD.replace("[relay]", "&a [relay]").replace("[main]", "&a [main]"))
    load_topology(file)
    assert not recwarn.list
