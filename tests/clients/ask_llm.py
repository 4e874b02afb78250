"""`llm`, the command: prompts, streaming, tools, schemas and its log, in a folder of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from checks import BEGUN_S, LONG, MESSAGES, WEATHER, Service, is_weather, run, until

QUESTION = MESSAGES[0]["content"]
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "24")
MODELS = """\
- {{model_id: pdd, model_name: {model}, api_base: "{url}", api_key_name: pdd,
   supports_schema: true, supports_tools: true}}
- {{model_id: pdd-text, model_name: {model}, api_base: "{url}", api_key_name: pdd,
   completion: true}}
- {{model_id: pdd-unknown, model_name: gpt-4, api_base: "{url}", api_key_name: pdd}}
"""
FUNCTION = "def weather(city: str) -> str:\n    return 'mild in ' + city[:0] + 'Lanzhou'\n"


class Home:
    """A user's folder of `llm` that knows the service, and nothing else."""

    def __init__(self, service: Service, folder: str) -> None:
        models = MODELS.format(model=service.model, url=service.url)
        Path(folder, "extra-openai-models.yaml").write_text(models)
        Path(folder, "keys.json").write_text(json.dumps({"pdd": service.key}))
        self.environment = os.environ | {"LLM_USER_PATH": folder}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "llm", *words]

    def run(self, *words: str, fails: bool = False) -> str:
        """What it prints; with `fails`, what it says of its failure."""
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (done.returncode != 0) == fails, (done.returncode, done.stdout, done.stderr)
        return done.stderr if fails else done.stdout

    def last(self) -> dict:
        """What it has kept of its last request."""
        (kept,) = json.loads(self.run("logs", "-n", "1", "--json"))
        return kept


def at(service: Service, *steps: Sequence[str]) -> list[str]:
    """Several commands in one folder, and what each prints."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        return [home.run(*step) for step in steps]


def prompts(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        streamed = home.run("-m", "pdd", QUESTION, *GREEDY)
        kept = home.last()
        assert kept["output_tokens"] == 24
        assert home.run("-m", "pdd", QUESTION, "--no-stream", *GREEDY) == streamed
        assert home.last()["output_tokens"] == 24
    assert streamed.strip()
    return f"{kept['input_tokens']} + 24 tokens, streamed as at once"


def conversation(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        home.run("-m", "pdd", QUESTION, "-s", "Be brief.", *GREEDY)
        before = home.last()["input_tokens"]
        home.run("-c", "And tomorrow?", *GREEDY)
        after = home.last()["input_tokens"]
    assert after > before + 24, "the first answer is not in the second prompt"
    return f"{before}, then {after} tokens in"


def completions(service: Service) -> str:
    streamed, whole = at(
        service,
        ("-m", "pdd-text", "Once upon a time", *GREEDY),
        ("-m", "pdd-text", "Once upon a time", "--no-stream", *GREEDY),
    )
    assert streamed == whole
    assert whole.strip()
    return "streamed as at once"


def logprobs(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        home.run("-m", "pdd-text", "Once upon a time", "-o", "logprobs", "2", *GREEDY)
        kept = home.last()["response_json"]["logprobs"]
    assert len(kept) > 1
    assert all(part["text"] is not None for part in kept)
    return f"{len(kept)} parts"


def schemas(service: Service) -> str:
    schema = json.dumps(WEATHER)
    (told,) = at(service, ("-m", "pdd", QUESTION, "--schema", schema, "-o", "max_tokens", "200"))
    return str(is_weather(told))


def tools(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        told = home.run("-m", "pdd", QUESTION, "--functions", FUNCTION, *GREEDY)
        kept = home.last()
    assert [tool["name"] for tool in kept["tools"]] == ["weather"]
    assert told.strip()
    return f"offered; the model answered in words, {kept['output_tokens']} tokens"


def errors(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        wrong = home.run("-m", "pdd", QUESTION, "--key", "wrong", fails=True)
        unknown = home.run("-m", "pdd-unknown", QUESTION, fails=True)
        long = home.run("-m", "pdd", "word " * 9000, fails=True)
    assert "the API key is not known" in wrong, wrong
    assert "the model 'gpt-4' does not exist" in unknown, unknown
    assert "maximum context length" in long, long
    return "401, 404 and 400, each in the server's words"


def leaving(service: Service) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(service, folder)
        words = ("-m", "pdd", QUESTION, "-o", "max_tokens", str(LONG))
        running = subprocess.Popen(
            home.command(*words), env=home.environment, stdout=subprocess.DEVNULL
        )
        try:
            until(lambda: service.open_requests() == 1, "it is under way", BEGUN_S)
        finally:
            running.terminate()
            running.wait()
        return service.left()


if __name__ == "__main__":
    run(
        version("llm"),
        [prompts, conversation, completions, logprobs, schemas, tools, errors, leaving],
    )
