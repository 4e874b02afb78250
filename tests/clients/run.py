"""Clients that others wrote, against a running service: `make clients`, `make client-openai`.

Each has an environment of its own under build/clients, and a script that asks it for everything
it offers. Without `--url` a service is started, whose engines are simulated and which wants a key.
`--record FILE` writes what came as Markdown, as far as it has come. The exit code is 1 if a check
failed.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.service import serving
from workers.engines.models import DEFAULT_MODEL, resolve_model

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = Path(__file__).parent
ENVIRONMENTS = ROOT / "build" / "clients"
TOPOLOGY = ROOT / "configs" / "topologies" / "laptop-simulated.yaml"
KEY = "a-clients-key"
KEYS_ENV = "PDD_CLIENTS_KEYS"
WITHIN_S = 5400.0  # schemathesis takes up to an hour
TOLD = ("version ", "ok ", "BAD ")
SIMULATED = "laptop-simulated.yaml with an API key, on the same machine"
PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")


class NoEnvironment(Exception):
    """A client cannot be installed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A script, and the packages it needs: each entry is one installation, in this order."""

    script: str
    packages: tuple[str, ...] = ()

    def prepare(self, folder: Path) -> list[str]:
        """Make the environment, unless it is there. The command that runs the script in it."""
        done = folder / ".packages"
        if not (done.exists() and done.read_text().split() == list(self.packages)):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._install(folder)
            done.write_text("\n".join(self.packages))
        return self._command(folder)

    def _install(self, folder: Path) -> None:
        _do(sys.executable, "-m", "venv", str(folder))
        for package in self.packages:
            _do(str(folder / "bin" / "python"), *PIP, package)

    def _command(self, folder: Path) -> list[str]:
        return [str(folder / "bin" / "python"), str(SCRIPTS / self.script)]


class NpmClient(Client):
    """In node's language: its script has to stand beside its packages."""

    def _install(self, folder: Path) -> None:
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise NoEnvironment(f"{program} is not installed (apt install nodejs npm)")
        (folder / "package.json").write_text("{}")
        _do("npm", "install", "--silent", "--prefix", str(folder), *self.packages)

    def _command(self, folder: Path) -> list[str]:
        return ["node", shutil.copy(SCRIPTS / self.script, folder)]


CLIENTS = {
    "curl": Client(script="ask_curl.py"),
    "openai": Client(script="ask_openai.py", packages=("openai==3.57.0",)),
    "openai-npm": NpmClient(script="ask_openai.mjs", packages=("openai@7.59.0",)),
    "langchain": Client(script="ask_langchain.py", packages=("langchain-openai==1.7.4",)),
    "litellm": Client(script="ask_litellm.py", packages=("litellm==1.110.2",)),
    "llm": Client(script="ask_llm.py", packages=("llm==0.36",)),
    "schemathesis": Client(script="ask_schemathesis.py", packages=("schemathesis==4.32.5",)),
    "aiperf": Client(script="ask_aiperf.py", packages=("aiperf==0.13.0",)),
    # torch first and alone: what the machine offers then stays, CPU build or not.
    "guidellm": Client(script="ask_guidellm.py", packages=("torch==2.13.0", "guidellm==0.8.1")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a client's script told of its checks, and its exit code."""

    name: str
    lines: tuple[str, ...]
    code: int

    def markdown(self) -> str:
        version, *checks = self.lines or ("version unknown",)
        told = [f"## {self.name} {version.removeprefix('version ')}", ""]
        told += [f"`make client-{self.name}`, exit code {self.code}", ""]
        told += ["| asked | | came |", "|---|---|---|"]
        for check in checks:
            verdict, _, rest = check.partition(" ")
            asked, _, came = rest.partition(": ")
            told.append(f"| {asked} | {verdict} | {came.replace('|', chr(92) + '|')} |")
        return "\n".join([*told, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    reader = argparse.ArgumentParser(prog="python -m tests.clients.run", description=__doc__)
    reader.add_argument("clients", nargs="*", help=f"of {', '.join(CLIENTS)}; none: all")
    reader.add_argument("--url", help="of a running service that nobody else uses, ending in /v1")
    reader.add_argument("--key", default="none", help="a key that this service knows")
    reader.add_argument("--model", default=DEFAULT_MODEL, help="that this service serves")
    reader.add_argument("--record", type=Path, metavar="FILE", help="write what came as Markdown")
    asked = reader.parse_args(arguments)
    names = asked.clients or list(CLIENTS)
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        print(f"no client {unknown[0]}; there are {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    commands = {}
    for name in names:
        print(f"{name}: its environment", flush=True)
        commands[name] = CLIENTS[name].prepare(ENVIRONMENTS / name)
    tokenizer = str(resolve_model(asked.model))
    results: list[Result] = []
    on = machine()
    running = contextlib.nullcontext((asked.url, asked.key)) if asked.url else simulated()
    with running as (url, key):
        for name, command in commands.items():
            results.append(ask(name, [*command, url, key, asked.model, tokenizer]))
            if asked.record is not None:
                asked.record.write_text(record(results, asked.url or SIMULATED, on))
    failed = [result.name for result in results if result.code]
    print(f"failed: {', '.join(failed)}" if failed else "all as it must be")
    return 1 if failed else 0


@contextlib.contextmanager
def simulated() -> Iterator[tuple[str, str]]:
    """The laptop's topology with simulated engines and a key. Its URL and the key."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clients.yaml")
        file.write_text(f"{TOPOLOGY.read_text()}\nsecurity: {{api_keys_env: {KEYS_ENV}}}\n")
        with serving(file, tell=print, environment={KEYS_ENV: KEY}) as served:
            yield served.url, KEY


def ask(name: str, command: Sequence[str]) -> Result:
    """Run a script to its end, for `WITHIN_S` at most; what it prints is shown as it comes."""
    print(f"\n{name}", flush=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        late = threading.Timer(WITHIN_S, running.kill)
        late.start()
        try:
            for line in running.stdout or ():
                print(f"  {line}", end="", flush=True)
                lines.append(line.rstrip())
        except BaseException:
            running.kill()  # else its end would be waited for
            raise
        finally:
            late.cancel()
    told = tuple(line for line in lines if line.startswith(TOLD))  # a client says more at times
    return Result(name=name, lines=told, code=running.returncode)


def record(results: Sequence[Result], service: str, on: dict[str, Any]) -> str:
    head = (
        "# Clients",
        "",
        "What clients that others wrote asked the service for, and what came, by",
        "`make clients ARGS='--record benchmarks/clients.md'`.",
        "",
        f"* The service: {service}.",
        f"* The machine: {on['cores']} cores ({on['processor']}), {on['system']}, Python "
        f"{on['python']}, load average {on['load_before']:.1f} before.",
        "",
    )
    return "\n".join([*head, *(result.markdown() for result in results)])


def _do(*command: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
