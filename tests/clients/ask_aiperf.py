"""`aiperf`, a load generator: what it measures of chats and completions, and of its own errors."""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checks import LONG, Service, run

REQUESTS, AT_ONCE, TOKENS_IN, TOKENS_OUT = 8, 4, 64, 32


def profile(
    service: Service, *options: str, key: str | None = None, tokens: int = TOKENS_OUT
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Its report of some requests, empty where none was served, and its record of each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(Path(sys.executable).with_name("aiperf")), "profile", "--ui", "none"),
            *("--url", service.url.removesuffix("/v1"), "--api-key", key or service.key),
            *("--model", service.model, "--tokenizer", service.tokenizer),
            *("--concurrency", str(AT_ONCE), "--request-count", str(REQUESTS)),
            *("--synthetic-input-tokens-mean", str(TOKENS_IN), "--random-seed", "1"),
            *("--output-tokens-mean", str(tokens), "--extra-inputs", "ignore_eos:true"),
            *("--use-server-token-count", "--artifact-dir", folder, *options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        records = Path(folder, "profile_export.jsonl")
        assert records.exists(), (done.returncode, (done.stdout + done.stderr)[-3000:])
        report = Path(folder, "profile_export_aiperf.json")
        return (
            json.loads(report.read_text()) if report.exists() else {},
            [json.loads(line) for line in records.read_text().splitlines()],
        )


def all_served(report: dict[str, Any]) -> str:
    """Every request, with as many tokens as were asked for."""
    assert report["error_summary"] == []
    assert report["request_count"]["avg"] == REQUESTS
    tokens = report["usage_completion_tokens"]
    assert tokens["min"] == tokens["max"] == TOKENS_OUT
    assert report["usage_prompt_tokens"]["min"] >= TOKENS_IN
    return f"{REQUESTS} requests, {report['total_usage_total_tokens']['avg']:.0f} tokens"


def chats_streamed(service: Service) -> str:
    report, _ = profile(service, "--endpoint-type", "chat", "--streaming", "--per-chunk-usage")
    told = all_served(report)
    first, gap = report["time_to_first_token"]["p50"], report["inter_token_latency"]["p50"]
    assert first > 0
    assert gap > 0
    assert report["time_to_second_token"]["p50"] >= 0
    return f"{told}, TTFT {first:.0f} ms, ITL {gap:.1f} ms (medians)"


def completions_at_once(service: Service) -> str:
    report, _ = profile(service, "--endpoint-type", "completions")
    assert "time_to_first_token" not in report
    return f"{all_served(report)}, {report['request_latency']['p50']:.0f} ms each (median)"


def requests_it_cancels(service: Service) -> str:
    _, records = profile(
        service,
        *("--endpoint-type", "chat", "--streaming"),
        *("--request-cancellation-rate", "100", "--request-cancellation-delay", "1"),
        tokens=LONG,
    )
    assert [record["metadata"]["was_cancelled"] for record in records] == [True] * REQUESTS
    return f"{REQUESTS} cancelled after a second, {service.left()}"


def a_wrong_key(service: Service) -> str:
    _, records = profile(service, "--endpoint-type", "chat", key="wrong")
    assert [record["error"]["code"] for record in records] == [401] * REQUESTS
    return f"{REQUESTS} times 401"


if __name__ == "__main__":
    run(version("aiperf"), [chats_streamed, completions_at_once, requests_it_cancels, a_wrong_key])
