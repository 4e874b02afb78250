"""The constants that probes give, against a virtual deployment whose constants are known.

Its workers and streams are the real ones and go token by token: what is fitted there and replayed
must tell of requests that were not probed.
"""

import json
import random
from dataclasses import asdict, replace
from functools import cache
from itertools import count
from typing import Any

import pytest

from benchmarks.confirm import JUDGED, PROBES, confirm, middle, sampled
from benchmarks.fitted import Sample, fit
from benchmarks.handoff import OUTPUT_TOKENS, PROMPT_TOKENS, ROUTES, Measured
from orchestrator.cli.output import print_json
from orchestrator.state.actions import Finish
from orchestrator.state.events import Arrived, HandoffMode, Route
from orchestrator.topology.core import core_config
from orchestrator.topology.schema import Topology
from orchestrator.virtual.setup import Ask, Setup, WorkerSpec
from orchestrator.virtual.world import World

BOOT_S = 3.0
ONE_WAY_S = 0.025
BYTES_PER_S = 1200.0  # of KV that is 16 bytes a token here
PREFILL_TOKENS_PER_S = 200.0
STEPS_S = {"near/compute/0": 0.11, "near/relay/0": 0.12, "far/memory/0": 0.105}
TOPOLOGY = Topology.model_validate(
    {
        "model": "smollm2-135m",
        "sites": {
            "near": {
                "pools": {
                    "compute": {
                        "chip": "cpu",
                        "roles": ["prefill", "main"],
                        "engine": "simulated",
                    },
                    "relay": {"chip": "cpu", "roles": ["relay"]},
                }
            },
            "far": {"pools": {"memory": {"chip": "cpu", "roles": ["main"]}}},
        },
        "links": [{"between": ["near", "far"], "delay": "25ms", "bandwidth": "9600bps"}],
        "gateway": {"site": "far"},
        "policy": {"route": "relay"},
    }
)


class Deployment:
    """TOPOLOGY in virtual time with its gateway at `home`, one request after another."""

    def __init__(self, home: str) -> None:
        workers = tuple(
            WorkerSpec(
                name=f"{site}/{name}/0",
                site=site,
                roles=pool.roles,
                step_s=STEPS_S[f"{site}/{name}/0"],
                prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
                kv_tokens=pool.kv_tokens,
            )
            for site, place in TOPOLOGY.sites.items()
            for name, pool in place.pools.items()
        )
        core = replace(core_config(TOPOLOGY, "g"), gateway_site=home)
        setup = Setup(core=core, workers=workers, one_way_s=ONE_WAY_S, bytes_per_s=BYTES_PER_S)
        self._world = World(setup, mild=True)
        self._world.run(BOOT_S)
        self._draw = random.Random(3)
        self._numbers = count()

    def measure(self, route: str, prompt: int, output: int) -> Measured:
        """What `benchmarks.handoff.measure` would have seen."""
        world, fields = self._world, ROUTES[route]
        mode = fields.get("pdd_handoff")
        arrived = Arrived(
            request=f"r{next(self._numbers)}",
            prompt_ids=tuple(self._draw.randrange(3, 30_000) for _ in range(prompt)),
            limit=output,
            route=Route(fields["pdd_route"]),
            handoff=None if mode is None else HandoffMode(mode),
        )
        client = world.ask(Ask(at=world.now, arrived=arrived))
        world.run(world.now + 200.0, stop=lambda: client.end is not None)
        world.run(world.now + 2.0)
        assert isinstance(client.end, Finish)
        assert not world.breaches
        told = client.end.summary
        return Measured(
            times=tuple(at - client.asked_at for at in client.times),
            ids=tuple(client.ids),
            margins=None,
            numbers={},
            told={**asdict(told), "workers": told.sites},
        )


@cache
def probed(home: str = "far") -> tuple[Sample, ...]:
    deployment = Deployment(home)
    return tuple(
        middle([sampled(p.prompt, deployment.measure(p.route, p.prompt, p.output))])
        for probes in PROBES.values()
        for p in probes
    )


@cache
def lived(home: str = "far") -> dict[str, dict[str, float]]:
    deployment = Deployment(home)
    times = {name: deployment.measure(name, PROMPT_TOKENS, OUTPUT_TOKENS).times for name in ROUTES}
    return {
        name: dict(zip(JUDGED, (seen[0], seen[1], seen[-1]), strict=True))
        for name, seen in times.items()
    }


@pytest.mark.parametrize("home", ["far", "near"])
def test_what_was_not_probed_is_told(home: str) -> None:
    confirmed = confirm(lived(home), probed(home), TOPOLOGY, home, 2)
    assert set(confirmed["replay"]) == set(ROUTES)
    assert confirmed["worst_error"] < 0.02


def test_all_of_it_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(confirm(lived(), probed(), TOPOLOGY, "far", 1))
    told = json.loads(capsys.readouterr().out)
    assert set(told["fitted"]["slower"]) == {"local", "direct", "relay"}


def test_the_constants_are_those_of_the_deployment() -> None:
    fitted = fit(probed(), TOPOLOGY, "far")
    assert fitted.token_s == pytest.approx(1 / PREFILL_TOKENS_PER_S, rel=0.01)
    assert fitted.slower == pytest.approx(dict.fromkeys(Route, 1.0), rel=0.01)
    assert fitted.local_step_s == pytest.approx(STEPS_S["near/compute/0"], rel=0.01)
    assert fitted.relay_step_s == pytest.approx(STEPS_S["near/relay/0"], rel=0.01)
    assert fitted.main_step_s == pytest.approx(STEPS_S["far/memory/0"], rel=0.01)
    assert fitted.line_wait_s == pytest.approx(0.0, abs=0.01)


def test_what_replay_does_not_tell_is_an_error() -> None:
    slower = {
        name: {key: seconds * 1.25 for key, seconds in row.items()} for name, row in lived().items()
    }
    told: dict[str, Any] = confirm(lived(), probed(), TOPOLOGY, "far", 1)["replay"]
    off: dict[str, Any] = confirm(slower, probed(), TOPOLOGY, "far", 1)["replay"]
    for name, row in off.items():
        for key, cell in row.items():
            assert cell["live"] == slower[name][key]
            assert cell["replay"] == told[name][key]["replay"]
            assert cell["error"] == pytest.approx(1 - cell["replay"] / cell["live"])
            assert cell["error"] > 0.18


def test_slow_prefill_beside_a_line_is_that_routes_own() -> None:
    samples = [
        replace(sample, prefill_s=2 * sample.prefill_s - 2 * ONE_WAY_S)
        if sample.route is Route.DIRECT
        else sample
        for sample in probed()
    ]
    fitted = fit(samples, TOPOLOGY, "far")
    assert fitted.slower[Route.DIRECT] == pytest.approx(2.0, rel=0.01)
    assert fitted.slower[Route.RELAY] == pytest.approx(1.0, rel=0.01)


def test_routes_have_to_be_probed() -> None:
    local = [sample for sample in probed() if sample.route is Route.LOCAL]
    with pytest.raises(ValueError, match="no probe of the direct route"):
        fit(local, TOPOLOGY, "far")


def test_a_probe_that_ends_before_its_kv_has_landed_tells_of_the_relay_alone() -> None:
    steps = [1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0]
    told = {
        "route": "relay",
        "queue_s": 0.25,
        "prefill_s": 0.5,
        "kv_transfer_s": None,
        "handoff_index": None,
        "relay_tokens": 7,
        "kv_bytes_raw": 0,
        "kv_bytes_wire": 0,
        "workers": {},
    }
    ids = tuple(range(len(steps)))
    seen = sampled(512, Measured(times=tuple(steps), ids=ids, margins=None, numbers={}, told=told))
    assert (seen.client_s, seen.prefill_s, seen.second_s) == (0.25, 0.5, 0.5)
    assert seen.relay_step_s == 0.25
    assert (seen.step_s, seen.landed_s) == (None, None)


def test_a_probe_with_a_handoff_tells_of_the_relay_and_then_of_main() -> None:
    relay = [1.0 + 0.5 * step for step in range(10)]  # KV lands at 5.75, after its last
    main = [relay[-1] + 0.25 * step for step in range(1, 21)]
    told = {
        "route": "relay",
        "queue_s": 0.0,
        "prefill_s": 1.0,
        "kv_transfer_s": 4.75,
        "handoff_index": 10,
        "relay_tokens": 9,
        "kv_bytes_raw": 512,
        "kv_bytes_wire": 256,
        "workers": {},
    }
    times = (*relay, *main)
    ids = tuple(range(len(times)))
    seen = sampled(512, Measured(times=times, ids=ids, margins=None, numbers={}, told=told))
    assert seen.landed_s == 5.75
    assert seen.relay_step_s == pytest.approx(0.5, rel=0.1)
    assert seen.step_s == pytest.approx(0.25)


def test_probes_are_repeated_and_the_middle_counts() -> None:
    few = [replace(probed()[0], prefill_s=seconds) for seconds in (9.0, 1.0, 2.0)]
    few.append(replace(few[0], prefill_s=1.5, step_s=7.0))
    assert middle(few) == replace(few[0], prefill_s=1.75, step_s=7.0)


def test_each_route_is_probed_around_its_turn_and_never_at_the_judged_length() -> None:
    order = [(name, probe.prompt) for name in (*ROUTES, None) for probe in PROBES.get(name, ())]
    assert len(order) == sum(map(len, PROBES.values()))
    lengths: dict[str, list[int]] = {}
    for probes in PROBES.values():
        for probe in probes:
            lengths.setdefault(probe.route, []).append(probe.prompt)
    for prompts in lengths.values():
        assert prompts == sorted(prompts)
        assert prompts[0] < PROMPT_TOKENS < prompts[-1]
        assert PROMPT_TOKENS not in prompts
