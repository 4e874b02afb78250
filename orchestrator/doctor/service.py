"""A running service, by what its gateway says: workers, their models, lines, its clock."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from orchestrator.doctor.finding import Finding, State, good_if, ok, size
from orchestrator.topology.units import show_rate

CLOCK_S = 2.0
LOSS = 0.02  # up to this BBR holds its rate
GOODPUT = 0.5  # of what the topology says; other traffic and short transfers take some


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to the gateway: when it was sent and answered, in seconds since 1970, and the
    Date that its answer carries.
    """

    sent_at: float
    answered_at: float
    date: str | None


def service_findings(status: dict[str, Any], asked: Asked) -> list[Finding]:
    """What `/status` tells, and how the answer came."""
    gateway = status["gateway"]["site"]
    ready = good_if(
        status["ready"],
        "service",
        f"{status['model']}, gateway in {gateway}: "
        + ("ready" if status["ready"] else f"not ready: {status['why_not']}"),
        "pdd status shows its workers, pdd serve --logs DIR keeps what they say",
        otherwise=State.FAIL,
    )
    return [
        ready,
        _clock(asked),
        *map(_worker, status["workers"]),
        *_models(status["workers"]),
        *map(_link, status["links"]),
    ]


def _clock(asked: Asked) -> Finding:
    """A Date has whole seconds, so half of one is added and the answer is as uncertain."""
    check = "gateway's clock"
    round_trip_s = asked.answered_at - asked.sent_at
    told = f"round trip {round_trip_s * 1e3:.3g} ms"
    try:
        date = parsedate_to_datetime(asked.date or "").timestamp()
    except ValueError:
        return ok(check, f"{told}; its answer has no date")
    offset_s = date + 0.5 - (asked.sent_at + asked.answered_at) / 2
    uncertain_s = 0.5 + round_trip_s / 2
    return good_if(
        abs(offset_s) <= CLOCK_S + uncertain_s,
        check,
        f"{told}; {offset_s:+.1f} s from ours, give or take {uncertain_s:.1f} s",
        "run chrony or systemd-timesyncd on both: certificates are checked by these clocks",
    )


def _worker(worker: dict[str, Any]) -> Finding:
    states = {"up": State.OK, "draining": State.WARN}
    state = states.get(worker["state"], State.FAIL)
    return Finding(
        check=f"worker {worker['name']}",
        state=state,
        value=f"{worker['state']}, roles {', '.join(worker['roles'])}",
        advice=None if state is State.OK else "its site's logs say why (pdd serve --logs DIR)",
    )


def _models(workers: list[dict[str, Any]]) -> list[Finding]:
    """Whether all workers that are up hold the same model; those that do not, by name."""
    held = {
        worker["name"]: worker["fingerprint"]
        for worker in workers
        if worker.get("fingerprint") is not None
    }
    names = {worker: _digest(fingerprint) for worker, fingerprint in held.items()}
    if not names:
        return []
    most, count = Counter(names.values()).most_common(1)[0]
    usual = next(held[worker] for worker, name in names.items() if name == most)
    found = [ok("fingerprint", f"{most} at {count} of {len(names)} workers that are up")]
    for worker, name in names.items():
        if name == most:
            continue
        other = held[worker]
        keys = [key for key in {**usual, **other} if usual.get(key) != other.get(key)]
        shown = "; ".join(f"{key} {other.get(key)!r} and not {usual.get(key)!r}" for key in keys)
        found.append(
            Finding(
                check=f"fingerprint of {worker}",
                state=State.FAIL,
                value=f"{name} and not {most}: {shown}",
                advice="give every worker the same files of the model: KV does not move between "
                "different ones",
            )
        )
    return found


def _digest(fingerprint: dict[str, Any]) -> str:
    text = orjson.dumps(fingerprint, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:12]


def _link(link: dict[str, Any]) -> Finding:
    """One direction of a link, as the router believes it is."""
    told, goodput = link["bandwidth_bytes_per_s"], link["goodput_bytes_per_s"]
    ago, loss = link["measured_s_ago"], link["loss"]
    measured = "not measured yet" if ago is None else f"measured {ago:.0f} s ago"
    lost = "" if loss is None else f", loss {loss:.2g}"
    emulated = "" if link["emulator"] is None else ", emulated"
    good = (loss is None or loss <= LOSS) and (ago is None or goodput >= GOODPUT * told)
    return good_if(
        good,
        f"link {' > '.join(link['between'])}",
        f"RTT {link['rtt_s'] * 1e3:.3g} ms, {show_rate(goodput)} of {show_rate(told)} "
        f"({measured}){lost}, {size(link['queue_bytes'])} of KV to send{emulated}",
        "pdd doctor FILE at both ends tells whether TCP's buffers are large enough; if they are, "
        "ask who runs the line, or write in the topology what it really gives",
    )
