"""Whether a replay tells what the live service does (`pdd bench handoff --replay`).

Between the requests that are judged, the service is probed with others, one at a time: before each
route with a shorter prompt and after it with a longer one, so that a machine that drifts drifts for
both. From the probes alone come the constants of the replay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import handoff
from benchmarks.fitted import Fitted, Sample, fit, make_setup, replay
from benchmarks.handoff import OUTPUT_TOKENS, PROMPT_TOKENS, ROUTES, Measured
from benchmarks.service import Served
from orchestrator.lifecycle.request import NEAR_HANDOFF
from orchestrator.replay.outcome import Outcome
from orchestrator.state.events import HandoffMode, Route
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Topology

JUDGED = ("ttft_s", "second_token_s", "e2e_s")
_FEW = 3  # gaps between tokens tell nothing of a step


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that is not judged: its route (of ROUTES) and how many tokens it has."""

    route: str
    prompt: int
    output: int


# What is probed before each route, and at the end. The judged prompts lie between the longer ones:
# little hangs on the form of what is fitted.
PROBES: dict[str | None, tuple[Probe, ...]] = {
    "local": (Probe("local", 16, 4), Probe("local", 512, 48)),
    "direct": (Probe("local", 704, 48), Probe("direct", 512, 32)),
    "relay_catch_up": (Probe("direct", 704, 32), Probe("relay_catch_up", 512, 72)),
    None: (Probe("relay_catch_up", 704, 72),),
}


@dataclass(slots=True)
class Probing:
    """Probes a service, again and again."""

    tell: Callable[[str], None]
    samples: dict[Probe, list[Sample]] = field(default_factory=dict)
    _prompt: tuple[int, ...] = ()

    def __call__(self, served: Served, route: str | None) -> None:
        longest = max(probe.prompt for probes in PROBES.values() for probe in probes)
        prompt = self._prompt = (
            self._prompt or handoff.make_prompts(served.model, 1, tokens=longest)[0]
        )
        for probe in PROBES.get(route, ()):
            known = self.samples.setdefault(probe, [])
            self.tell(f"probe {probe.route}, {probe.prompt} tokens")
            fields: dict[str, Any] = {
                **ROUTES[probe.route],
                "max_tokens": probe.output,
                "cache_salt": f"probe {probe.route} {probe.prompt} {len(known)}",
            }
            known.append(
                sampled(probe.prompt, handoff.measure(served, prompt[: probe.prompt], fields))
            )


def run(
    topology: Path,
    *,
    gateway_site: str | None,
    requests: int,
    logs: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """`handoff.run`, and beside each route's medians what a replay says."""
    probing = Probing(tell)
    result = handoff.run(
        topology,
        gateway_site=gateway_site,
        requests=requests,
        logs=logs,
        tell=tell,
        aside=probing,
    )
    samples = [middle(known) for known in probing.samples.values()]
    confirmed = confirm(
        result["routes"], samples, load_topology(topology), result["gateway_site"], requests
    )
    return {**result, **confirmed}


def confirm(
    live: Mapping[str, Mapping[str, Any]],
    samples: Sequence[Sample],
    topology: Topology,
    gateway_site: str,
    requests: int,
) -> dict[str, Any]:
    """`live`: each route's medians of JUDGED. Errors are fractions of the live figure."""
    fitted = fit(samples, topology, gateway_site)
    replayed = {
        name: replayed_route(name, fitted, topology, gateway_site, requests) for name in live
    }
    rows = {
        name: {key: _compared(row[key], replayed[name][key]) for key in JUDGED}
        for name, row in live.items()
    }
    return {
        "replay": rows,
        "probes": [asdict(sample) for sample in samples],
        "fitted": asdict(fitted),
        "worst_error": max(cell["error"] for row in rows.values() for cell in row.values()),
    }


def replayed_route(
    name: str, fitted: Fitted, topology: Topology, gateway_site: str, requests: int
) -> dict[str, float]:
    """A route's medians of JUDGED in a replay of the requests that are judged."""
    fields = ROUTES[name]
    route = Route(fields["pdd_route"])
    mode = fields.get("pdd_handoff")
    outcomes = replay(
        make_setup(fitted, topology, gateway_site, route),
        route=route,
        handoff=None if mode is None else HandoffMode(mode),
        prompt=PROMPT_TOKENS,
        output=OUTPUT_TOKENS,
        requests=requests,
    )
    seen = [_seen(outcome, fitted.client_s) for outcome in outcomes]
    return {key: median(numbers[key] for numbers in seen) for key in JUDGED}


def sampled(prompt: int, measured: Measured) -> Sample:
    """What a probe of so many prompt tokens tells."""
    told, times = measured.told, measured.times
    first_s, landed_s = told["prefill_s"], None
    if told["kv_transfer_s"]:
        landed_s = first_s + told["kv_transfer_s"]
    handed = told["handoff_index"]
    before = 1  # pieces of text up to here came while the relay was alone
    if told["relay_tokens"]:
        arrives_s = inf if landed_s is None else times[0] + told["kv_transfer_s"]
        before = max(1, sum(at < arrives_s for at in times) - 1)
    # From the end backwards a piece is a token; near a handoff several may be one.
    after = len(times) - 2
    if handed is not None:
        after = min(after, len(measured.ids) - handed - NEAR_HANDOFF)
    elif told["relay_tokens"]:
        after = 0  # main was never heard of
    return Sample(
        route=Route(told["route"]),
        prompt=prompt,
        output=len(measured.ids),
        context=prompt + len(measured.ids) - after / 2,
        client_s=times[0] - told["queue_s"] - first_s,
        prefill_s=first_s,
        landed_s=landed_s,
        second_s=times[1] - times[0],
        relay_step_s=(times[before] - times[1]) / (before - 1) if before > _FEW else None,
        step_s=(times[-1] - times[-1 - after]) / after if after >= _FEW else None,
        raw_bytes=told["kv_bytes_raw"],
        wire_bytes=told["kv_bytes_wire"],
        workers=told["workers"],
    )


def middle(samples: Sequence[Sample]) -> Sample:
    """The same probe, repeated: medians."""
    first = samples[0]

    def of(name: str) -> Any:
        values = [v for sample in samples if (v := getattr(sample, name)) is not None]
        return median(values) if values else None

    numbers = {name: of(name) for name in Sample.__slots__ if name not in ("route", "workers")}
    return Sample(route=first.route, workers=first.workers, **numbers)


def _seen(outcome: Outcome, client_s: float) -> dict[str, float]:
    """As the client sees it. Raises RuntimeError when the replay did not serve it."""
    told = outcome.first_at, outcome.second_at, outcome.last_at
    numbers = {}
    for key, at in zip(JUDGED, told, strict=True):
        if at is None:
            raise RuntimeError(f"in the replay a request did not end well: {outcome.end}")
        numbers[key] = at - outcome.asked_at + client_s
    return numbers


def _compared(live: float, replayed: float) -> dict[str, float]:
    return {"live": live, "replay": replayed, "error": abs(replayed - live) / live}
