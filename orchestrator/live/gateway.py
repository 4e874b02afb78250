"""The gateway process: HTTP surface, driver and roster over one socket."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Info
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import AutoConfig, AutoTokenizer

from orchestrator.errors import UserError
from orchestrator.live.directory import Directory
from orchestrator.live.driver import Driver, Record
from orchestrator.live.openai.app import create_app
from orchestrator.live.openai.border.connection import SEND_BUFFER_BYTES, Connection, Outgoing
from orchestrator.live.openai.border.door import Door
from orchestrator.live.openai.service import ModelCard, Tokenizer
from orchestrator.live.openai.text import StopWatch
from orchestrator.live.openai.vocabulary import Vocabulary
from orchestrator.live.orders import Orders
from orchestrator.live.page.requests import Recent
from orchestrator.live.page.state import LiveState
from orchestrator.live.replanner import Replanner
from orchestrator.live.roster import Roster, expected_workers
from orchestrator.live.startable import site_tls
from orchestrator.live.tracing import open_traces
from orchestrator.membership.reports import LeaseRefused
from orchestrator.metrics.exposition import Metrics
from orchestrator.topology.core import core_config
from orchestrator.topology.schema import Topology
from transport.emulator.control import LineError
from transport.tls import TlsContexts
from workers.api.wire import WireError
from workers.service.app import BearerOnly, answer, read_body
from workers.service.front import Front, listen

log = logging.getLogger(__name__)

READY_CHECK_S = 0.1


def read_card(name: str, directory: Path) -> ModelCard:
    """What clients are told of the model, from its own files. Raises UserError."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True).get_text_config()
        generation = directory / "generation_config.json"
        told = json.loads(generation.read_text()) if generation.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"model {name!r}: {one_line(error)}") from error
    max_context = getattr(config, "max_position_embeddings", None)
    if max_context is None:
        raise UserError(f"model {name!r}: its config names no max_position_embeddings")
    ends = told.get("eos_token_id", config.eos_token_id)
    stop_ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return ModelCard(
        name=Path(name).name,
        max_context=max_context,
        vocab_size=config.vocab_size,
        created=int(directory.stat().st_mtime),
        stop_ids=tuple(stop_ids),
    )


def load_tokenizer(name: str, directory: Path) -> Tokenizer:
    """The model's fast tokenizer. Raises UserError."""
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # tokenizers raises bare ones of its own
        raise UserError(f"model {name!r}: its tokenizer: {one_line(error)}") from error
    return tokenizer


def one_line(error: Exception) -> str:
    """What went wrong, for people."""
    return " ".join(str(error).split()) or type(error).__name__


def gateway_tls(topology: Topology) -> TlsContexts | None:
    """The gateway's own, which is its site's. Raises UserError."""
    return site_tls(topology, topology.gateway.site)


def take_port(
    host: str, port: int, *, shared: bool = False, key: str = "gateway.port"
) -> socket.socket:
    """A listening socket of the gateway's. Raises UserError, which names `key`, when it is taken.

    `shared`: not if by others of this user who share it too. The kernel gives each new connection
    to one of them.
    """
    try:
        # From here on agents may connect; they are answered as soon as the gateway serves.
        taken = listen(host, port, shared=shared)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{key}: cannot listen on {host}:{port}: {reason}; "
            "stop what uses it or give another port"
        ) from error
    # Connections inherit it. The kernel's own would grow to megabytes for a client that reads
    # slowly; no stream of tokens needs them.
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return taken


class Gateway:
    """One gateway: built inside its event loop, runs until it is told to stop.

    `name`: one that no other gateway has, nor had. `replanner` None: roles stay what they are.
    `replaces`: it takes the place of one that served, so it waits for some worker and not for all.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        name: str,
        card: ModelCard,
        tokenizer: Tokenizer,
        directory: Directory,
        secret: str,
        door: Door | None = None,
        record: Record | None = None,
        replanner: Replanner | None = None,
        tls: TlsContexts | None = None,
        replaces: bool = False,
    ) -> None:
        self._replaces = replaces
        registry = CollectorRegistry()
        metrics = Metrics(registry, card.name)
        # Where several share a port: whose figures these are.
        Info("pdd_gateway", "Who tells this", registry=registry).info({"gateway": name})
        clock = asyncio.get_running_loop().time
        recent = Recent(clock)
        self._traces = open_traces(topology, card.name, clock)
        vocabulary = Vocabulary(tokenizer, card.stop_ids)
        self.driver = Driver(
            core_config(topology, name),
            model=card,
            tokenizer=tokenizer,
            stop_watch=lambda stops: StopWatch(vocabulary, stops),
            addresses=directory,
            secret=secret,
            metrics=metrics,
            needed=frozenset() if replaces else expected_workers(topology),
            sites=tuple(topology.sites),
            record=record,
            watchers=(metrics, recent, *([] if self._traces is None else [self._traces])),
            finished=(lambda summary: None) if replanner is None else replanner.ended,
            tls=None if tls is None else tls.client,
        )
        aliases = topology.metrics.vllm_aliases
        metrics.watch(self.driver.machine, self.driver.members, vllm_aliases=aliases)
        state = LiveState(
            self.driver.machine,
            self.driver.members,
            recent,
            model=card.name,
        )
        for link in topology.links:
            a, b = link.between
            self.driver.line(a, b, 2 * link.delay_s, link.rate_bytes_per_s)
        self.roster = Roster(topology, self.driver, directory)
        self._replanner = replanner
        app = create_app(
            self.driver,
            metrics=metrics,
            live=lambda: state.describe(self.driver.ready(), clock()),
            order=Orders(self.driver.members, self.roster).take,
            door=door,
            cors=topology.gateway.cors,
        )
        outgoing = Outgoing()
        self._new_front = partial(Front, app, http=partial(Connection, outgoing))
        self._fronts: list[Front] = []  # that clients see
        # Agents have a port of their own: with TLS they show certificates, which clients have not.
        self._internal = Front(
            _internal_app(self.roster, secret), None if tls is None else tls.server
        )

    async def run(
        self, public: socket.socket, internal: socket.socket, stop: asyncio.Event
    ) -> None:
        """Serve clients on `public` and agents on `internal` until `stop` is set."""
        fronts = ((self._client_front(), public), (self._internal, internal))
        serving = [asyncio.create_task(front.serve(sockets=[sock])) for front, sock in fronts]
        # They never end but by a failure.
        endless: list[asyncio.Task[None]] = [asyncio.create_task(self.roster.watch())]
        if self._replanner is not None:
            endless.append(asyncio.create_task(self._replanner.run(self.driver)))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*serving, *endless, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in endless:
                if task.done():
                    await task
        finally:
            stopping.cancel()
            for task in endless:
                task.cancel()
            await asyncio.gather(*endless, return_exceptions=True)
            await self.driver.close()
            if self._traces is not None:
                await asyncio.to_thread(self._traces.close)
            for front, _ in fronts:
                front.should_exit = True
            await asyncio.gather(*serving)

    async def answer(self, public: socket.socket, stop: asyncio.Event) -> None:
        """Serve clients on one more socket, while it runs and until `stop` is set."""
        front = self._client_front()
        serving = asyncio.create_task(front.serve(sockets=[public]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        front.should_exit = True
        await serving

    async def leave(self, within_s: float) -> None:
        """Take no more clients; return when those who are there have their answers, or after so
        long. Stop it then.
        """
        await asyncio.gather(*(front.leave(within_s) for front in self._fronts))

    def _client_front(self) -> Front:
        self._fronts.append(self._new_front())
        return self._fronts[-1]

    async def ready(
        self,
        timeout_s: float | None,
        running: "asyncio.Task[None]",
        tell: Callable[[str], None] = lambda line: None,
    ) -> str | None:
        """Wait until requests can be served; what is missing when that takes too long.

        `running` is the task of `run`: what that failed of is raised. Without a `timeout_s` it
        waits for ever, and `tell` hears what for.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told: str | None = None
        while (missing := self.driver.ready()) is not None:
            if running.done():
                await running
                return "the gateway ended before it served"
            failed = {} if self._replaces else self.roster.failures()
            if failed:
                missing = "; ".join(f"worker {name}: {why}" for name, why in failed.items())
            if deadline is not None and (failed or time.monotonic() > deadline):
                return missing
            if missing != told:
                told = missing
                tell(missing)
            await asyncio.sleep(READY_CHECK_S)
        return None


def _internal_app(roster: Roster, secret: str) -> Starlette:
    """What agents call, behind the deployment's secret and not behind the clients' keys."""

    async def lease(request: Request) -> Response:
        try:
            told = await roster.renew(await read_body(request))
        except (LeaseRefused, WireError) as error:
            return answer({"error": str(error)}, 400)
        except LineError as error:
            log.error("line", extra={"reason": str(error)})
            return answer({"error": str(error)}, 503)
        return answer({"renewed": True} | told)

    return Starlette(
        routes=[Route("/internal/lease", lease, methods=["POST"])],
        middleware=[Middleware(BearerOnly, secret=secret)],
    )
