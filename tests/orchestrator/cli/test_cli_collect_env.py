"""`pdd collect-env`: versions and settings, and nothing that is private."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.cli.main import run

TOPOLOGY = """\
model: /models/secret-project
sites:
  hami:
    pools:
      all: {chip: cpu, engine: vllm, vllm: {python: p, args: [--api-key=abc], env: {TOKEN: hf_abc}}}
      far: {chip: cpu, engine: vllm, vllm: {attach: "http://me:pass@gpu7:8000", pools: pp}}
gateway: {site: hami, host: 10.1.2.3, cors: [me.example]}
security: {api_keys_file: keys.txt, tenants: {acme: {}}}
telemetry: {otlp: "http://me:pass@collector:4318/v1/traces"}
"""


def test_it_says_what_one_would_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collect-env", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pdd"] == version("pdd-orchestrator")
    assert found["packages"]["torch"] == version("torch")
    checks = {finding["check"] for finding in found["findings"]}
    assert {"system", "python", "cores", "memory"} <= checks


def test_nothing_private_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PDD_API_KEY", "sk-hidden")
    monkeypatch.setenv("SOMETHING_ELSE", "hidden too")
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    for form in ("text", "json"):
        assert run(["collect-env", str(file), "-o", form]) == 0
        told = capsys.readouterr().out
        assert "PDD_API_KEY" in told
        assert "hami" in told
        for private in (
            *("hidden", "10.1.2.3", "acme", "keys.txt", "secret-project", str(tmp_path)),
            *("pass", "collector", "abc", "gpu7", "me.example"),
        ):
            assert private not in told
