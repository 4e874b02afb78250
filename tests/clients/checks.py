"""What the clients' scripts share. Plain Python: a script runs in its client's own environment.

A script is a list of checks. Each asks the service something through its client, asserts what
must hold, and returns in a few words what came. `python ask_openai.py URL KEY MODEL TOKENIZER`
runs them all, on a service that nobody else uses, and prints a line for each; the exit code is 1
if one of them failed.
"""

import argparse
import json
import time
import traceback
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

FREE_S = 5.0  # after a client has left, everything it held is free
BEGUN_S = 30.0  # a client that is a process of its own has asked
LONG = 4000  # tokens, of an answer that nobody waits for

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather now.", "parameters": WEATHER},
}
MESSAGES = [{"role": "user", "content": "How warm is it in Lanzhou, and what is the wind like?"}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`url` ends in /v1; `tokenizer` is a directory, for clients that count tokens themselves."""

    url: str
    key: str
    model: str
    tokenizer: str

    def status(self) -> dict[str, Any]:
        """What `/status` says now."""
        base = self.url.removesuffix("/v1")
        asked = urllib.request.Request(
            f"{base}/status", headers={"authorization": f"Bearer {self.key}"}
        )
        with urllib.request.urlopen(asked, timeout=10.0) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def open_requests(self) -> int:
        """How many requests the gateway has that have not ended."""
        count: int = self.status()["requests"]["open"]
        return count

    def left(self) -> str:
        """After a client has left a long answer: nothing goes on."""
        return f"free after {until(lambda: self.open_requests() == 0, 'no request is open'):.1f} s"


Check = Callable[[Service], str]
Error = TypeVar("Error", bound=Exception)


def until(true: Callable[[], bool], what: str, within_s: float = FREE_S) -> float:
    """Seconds until it is true. Raises AssertionError when it is not in time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began


def refused(kind: type[Error], ask: Callable[[], object]) -> Error:
    """The error of that kind with which it is refused. Raises AssertionError where it is not."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def is_weather(text: str) -> dict[str, Any]:
    """The object that `WEATHER` allows."""
    value: dict[str, Any] = json.loads(text)
    assert value.keys() == {"city", "unit"}, text
    assert isinstance(value["city"], str), text
    assert value["unit"] in {"C", "F"}, text
    return value


def run(version: str, checks: Sequence[Check]) -> NoReturn:
    """Every check, one line each; exits with 0 or 1."""
    reader = argparse.ArgumentParser()
    for name in ("url", "key", "model", "tokenizer"):
        reader.add_argument(name)
    service = Service(**vars(reader.parse_args()))
    print(f"version {version}", flush=True)
    failed = 0
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            came = check(service)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            came = f"{type(error).__name__}: {error}"
            print(f"BAD {name}: {' '.join(came.split())[:300]}", flush=True)
        else:
            print(f"ok {name}: {' '.join(came.split())}", flush=True)
    raise SystemExit(1 if failed else 0)
