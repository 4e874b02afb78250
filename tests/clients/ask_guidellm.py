"""`guidellm`, a load generator: what it measures of conversations, completions and its errors."""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checks import LONG, Service, run

REQUESTS, AT_ONCE, TOKENS_IN, TOKENS_OUT = 8, 4, 64, 32
ENOUGH = ("max_requests", "count", REQUESTS)


def benchmark(
    service: Service,
    request_format: str,
    *,
    stream: bool,
    until: tuple[str, str, int] = ENOUGH,
    key: str | None = None,
    tokens: int = TOKENS_OUT,
    turns: int = 1,
) -> dict[str, Any]:
    """Its report of some requests."""
    constraint, unit, amount = until
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        options = {
            "backend": {
                "kind": "openai_http",
                "target": service.url.removesuffix("/v1"),
                "model": service.model,
                "api_key": key or service.key,
                "request_format": request_format,
                "stream": str(stream).lower(),
            },
            "profile": {"kind": "concurrent", "streams": AT_ONCE},
            "constraint": {"kind": constraint, unit: amount},
            "tokenizer": {"kind": "huggingface_auto", "model": service.tokenizer},
            "data": {
                "kind": "synthetic_text",
                "prompt_tokens": TOKENS_IN,
                "output_tokens": tokens,
                "turns": turns,
            },
            "output": {"kind": "json", "path": report},
        }
        command = [str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console"]
        for option, values in options.items():
            command += [f"--{option}", ",".join(f"{k}={v}" for k, v in values.items())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert report.exists(), (done.returncode, (done.stdout + done.stderr)[-3000:])
        (told,) = json.loads(report.read_text())["benchmarks"]
    return told


def all_served(told: dict[str, Any]) -> str:
    """Every request, with as many tokens as were asked for."""
    totals = told["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals
    served = told["requests"]["successful"]
    assert [request["output_tokens"] for request in served] == [TOKENS_OUT] * REQUESTS
    assert all(request["prompt_tokens"] >= TOKENS_IN for request in served)
    return f"{REQUESTS} requests, {sum(request['total_tokens'] for request in served)} tokens"


def median(told: dict[str, Any], metric: str) -> float:
    value: float = told["metrics"][metric]["successful"]["median"]
    assert value > 0, metric
    return value


def conversations_streamed(service: Service) -> str:
    told = benchmark(service, "/v1/chat/completions", stream=True, turns=2)
    first, gap = median(told, "time_to_first_token_ms"), median(told, "inter_token_latency_ms")
    assert any(request["cached_tokens"] > TOKENS_IN for request in told["requests"]["successful"])
    return f"{all_served(told)} in two turns, TTFT {first:.0f} ms, ITL {gap:.1f} ms (medians)"


def completions_at_once(service: Service) -> str:
    told = benchmark(service, "/v1/completions", stream=False)
    return f"{all_served(told)}, {1e3 * median(told, 'request_latency'):.0f} ms each (median)"


def requests_it_leaves(service: Service) -> str:
    told = benchmark(
        service,
        "/v1/chat/completions",
        stream=True,
        until=("max_duration", "seconds", 5),
        tokens=LONG,
    )
    totals = told["metrics"]["request_totals"]
    assert (totals["successful"], totals["incomplete"]) == (0, AT_ONCE), totals
    return f"{AT_ONCE} left after five seconds, {service.left()}"


def a_wrong_key(service: Service) -> str:
    told = benchmark(service, "/v1/chat/completions", stream=True, key="wrong")
    totals = told["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (0, REQUESTS), totals
    assert all("401" in request["info"]["error"] for request in told["requests"]["errored"])
    return f"{REQUESTS} times 401"


if __name__ == "__main__":
    run(
        version("guidellm"),
        [conversations_streamed, completions_at_once, requests_it_leaves, a_wrong_key],
    )
