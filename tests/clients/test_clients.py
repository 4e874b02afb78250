"""The light clients on a running service, and the runner; the heavy ones: `make clients`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.machine import machine
from benchmarks.service import serving
from tests.clients.run import CLIENTS, KEY, KEYS_ENV, SCRIPTS, Result, ask, main, record

pytestmark = pytest.mark.timeout(300)

TOPOLOGY = f"""\
model: smollm2-135m
sites:
  here:
    launch: local
    pools:
      all: {{chip: cpu, roles: [prefill, main], engine: simulated,
             simulate: {{prefill_tokens_per_s: 20000.0, step: 5ms}}}}
gateway: {{site: here}}
security: {{api_keys_env: {KEYS_ENV}}}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """URL, key, model and tokenizer of a service with one fast worker, as scripts take them."""
    file = tmp_path_factory.mktemp("service") / "clients.yaml"
    file.write_text(TOPOLOGY)
    with serving(file, environment={KEYS_ENV: KEY}) as served:
        yield [served.url, KEY, served.model, "none"]


@pytest.mark.parametrize("name", ["curl", "openai"])
def test_a_client_gets_all_it_asks_for(name: str, service: list[str]) -> None:
    script = SCRIPTS / CLIENTS[name].script
    result = ask(name, [sys.executable, str(script), *service])
    assert result.code == 0, "\n".join(result.lines)
    assert result.lines[0].startswith("version ")
    assert all(line.startswith("ok ") for line in result.lines[1:])
    assert len(result.lines) > 10


FAILING = """\
from checks import run

def one_that_holds(service):
    print("what a client says itself")
    return f"{service.model}\\nat {service.url}"

def one_that_fails(service):
    assert service.key == "right", "the key is wrong"

run("1.0", [one_that_fails, one_that_holds])
"""


def test_a_check_that_fails_is_told_and_fails_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    result = ask("it", [sys.executable, str(script), "here", "wrong", "smol", "none"])
    assert result.code == 1
    assert result.lines == (
        "version 1.0",
        "BAD one that fails: AssertionError: the key is wrong",
        "ok one that holds: smol at here",
    )


def test_a_script_that_hangs_is_ended_and_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.clients.run.WITHIN_S", 0.2)
    assert ask("it", [sys.executable, "-c", "import signal; signal.pause()"]).code != 0


def test_every_client_has_a_script_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts = {client.script for client in CLIENTS.values()}
    assert scripts == {path.name for path in SCRIPTS.glob("ask_*")}
    assert main(["nobody"]) == 2
    assert "no client nobody" in capsys.readouterr().err


def test_what_came_is_recorded() -> None:
    lines = ("version 1.2", "ok chat: 3 | 4: five", "BAD stop: AssertionError: no")
    told = record([Result(name="it", lines=lines, code=1)], "here", machine()).splitlines()
    assert told[0] == "# Clients"
    assert told[-5:] == [
        "",
        "| asked | | came |",
        "|---|---|---|",
        r"| chat | ok | 3 \| 4: five |",
        "| stop | BAD | AssertionError: no |",
    ]
    assert {"## it 1.2", "`make client-it`, exit code 1", "* The service: here."} <= set(told)
