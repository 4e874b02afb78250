"""What gateways, agents, workers and stores say to each other, and an operator to a gateway.

Who speaks here has the deployment's secret; a defect, another version or a stolen key is no reason
to fall over.
"""

import functools
import random
import socket
from collections.abc import Coroutine
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.fuzz.campaign import Refusal
from benchmarks.fuzz.mutate import json_like, some_bytes
from orchestrator.live.agent import read_names, read_workers
from orchestrator.live.openai.app import parse_body
from orchestrator.live.openai.errors import ApiError
from orchestrator.live.orders import Orders
from orchestrator.membership.leases import SiteLeases
from orchestrator.membership.members import Members
from orchestrator.membership.reach import CameUp
from orchestrator.membership.reports import LeaseRefused, read_hello, read_report
from orchestrator.membership.standing import read_standing
from orchestrator.membership.stores import StoreVersions
from orchestrator.metrics.stores import StoreMetrics
from workers.api.messages import (
    Cause,
    Feed,
    Landed,
    NextTokens,
    Pause,
    Paused,
    Refused,
    Resume,
    Resync,
    Role,
    Sampling,
    SendKV,
    Start,
    Stop,
    TokenRun,
)
from workers.api.wire import CONTROL, TOKENS, UP, WireError, decode, encode
from workers.costs import MeasuredCosts
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.service.app import parse, read_messages
from workers.tiers.blocks import KEY_BYTES, checksum
from workers.tiers.holdings import VERSION_BYTES
from workers.tiers.server import StoreServer
from workers.tiers.store import BlockStore, StoreConfig
from workers.tiers.wire import Kind, Wire, WireBroken
from workers.worker import Worker

MOST_ANSWERS = 8 << 20
SITES = ("hami", "shenzhen")
LEG = {"request": "req-1", "epoch": 1}
START = Start(
    request="req-1",
    epoch=1,
    gateway="gw",
    role=Role.MAIN,
    prompt_ids=tuple(range(100, 140)),
    law_ids=(7, 8),
    cover=1,
    limit=12,
    stop_ids=(2,),
    sampling=Sampling(temperature=0.5, top_p=0.9, logit_bias=((5, 1.5),), logprobs=2),
    reserve=60,
)
DOWN = [
    orjson.loads(orjson.dumps(encode(message)))
    for message in (
        START,
        Start(
            request="req-1", epoch=0, gateway="gw", role=Role.PREFILL, prompt_ids=(1,) * 40,
            limit=12, reserve=41,
        ),
        SendKV(**LEG, to_worker="shenzhen/q/0", to_epoch=2, start=0, stop=40, address="h:1"),
        Pause(**LEG, seq=1, at=4),
        Resume(**LEG, seq=1),
        Stop(**LEG),
        Feed(**LEG, law=3, start=2, ids=(9,)),
        Resync(**LEG, start=0),
    )
]  # fmt: skip
FED = ("feed", "resync")
UPWARDS = [
    orjson.loads(orjson.dumps(encode(message)))
    for message in (
        TokenRun(**LEG, index=0, ids=(1, 2), hist=3, fed=0, margins=(0.5, 0.25)),
        NextTokens(requests=("a", "b"), epochs=(1, 2), indices=(0, 5), ids=(7, 8), hists=(1, 2),
                   feds=(0, 0)),
        Landed(**LEG, covered=1),
        Paused(**LEG, seq=1, at=4),
        Refused(**LEG, reason="busy", cause=Cause.BUSY),
    )
]  # fmt: skip
HELLO = {
    "worker": "hami/p/0",
    "incarnation": "first",
    "pid": 100,
    "slots": 4,
    "kv_bytes_per_token": 128,
    "info": {"max_context": 512, "kv_total_tokens": 2048, "block_size": 16, "fingerprint": {}},
}
WORKER = {
    "name": "hami/p/0",
    "pool": "p",
    "roles": ["prefill", "main"],
    "state": "up",
    "reason": None,
    "http": "127.0.0.1:1",
    "kv": "127.0.0.1:2",
}
STANDING = {"version": 1, "drained": False, "replace": ["hami/p/0"]}
STORE = {
    "pool": "p",
    "since": "",
    "version": "00" * 24,
    "whole": True,
    "added": "0123456789abcdef" * 2,
    "removed": "",
    "account": {
        "counts": {"misses": 3, "hits_dram": 1},
        "tiers": {"dram": {"bytes": 1, "capacity_bytes": 2}},
        "unwritten_bytes": 0,
    },
}
REPORT = {
    "site": "hami",
    "agent_epoch": 1,
    "workers": [WORKER, WORKER | {"name": "hami/p/1", "state": "starting"}],
    "lease": "renewed",
    "stores": [STORE],
    "standing": STANDING,
}
CONFIG = {
    "name": "hami/p/0",
    "site": "hami",
    "pool": "p",
    "roles": ["prefill"],
    "model": "smollm2-135m",
    "http_port": 7001,
    "kv_port": 7002,
    "lines": {"shenzhen": {"rate_bytes_per_s": 1e6, "rtt_s": 0.05, "paced": True}},
    "stores": ["127.0.0.1:7003"],
    "tls": {"ca": "a", "cert": "b", "key": "c"},
    "sites": ["hami", "shenzhen"],
}


class Workers:
    """Posts to a worker's /control and /feed, and the steps that it takes between them."""

    def __init__(self) -> None:
        engine = SimulatedEngine(
            SimulatedModel(),
            MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.02),
            kv_total_tokens=4096,
            chunk_tokens=64,
        )
        self._worker = Worker("hami/p/0", engine, slots=8, hold_s=30.0, lease_s=10.0, stores=True)
        self._now = 0.0
        self._fed = False
        self._steps = 0

    def input(self, rng: random.Random) -> bytes:
        self._fed = rng.random() < 0.3
        self._steps = rng.randrange(3)
        fitting = [message for message in DOWN if (message["kind"] in FED) == self._fed]
        return json_like(rng, [{"messages": [DOWN[0], *rng.choices(fitting, k=2)][self._fed :]}])

    def feed(self, data: bytes) -> None:
        self._now += 0.05
        try:
            messages = read_messages(parse(data), TOKENS if self._fed else CONTROL)
        except WireError as error:
            raise Refusal("WireError", str(error)) from error
        worker = self._worker
        for message in messages:
            worker.handle(message, self._now)
        worker.gateway_seen("gw", self._now)
        for _ in range(self._steps):
            step = worker.begin(self._now)
            if step is not None:
                self._now += 0.02
                worker.finish(step, self._now)
        worker.expire(self._now)


class Streams:
    """Lines of a worker's token stream, as its gateway reads them."""

    def input(self, rng: random.Random) -> bytes:
        return json_like(rng, [{"hello": HELLO}, {"messages": UPWARDS}])

    def feed(self, data: bytes) -> None:
        try:
            body = parse(data)
            if isinstance(body, dict) and "hello" in body:
                read_hello(body["hello"])
            else:
                messages = body.get("messages") if isinstance(body, dict) else None
                for message in messages if isinstance(messages, list) else ():
                    decode(message, UP)
        except WireError as error:
            raise Refusal("WireError", str(error)) from error


class Leases:
    """What agents post to the gateway, into the leases, the stores' holdings and the metrics."""

    def __init__(self) -> None:
        self._leases = SiteLeases(SITES, 10.0)
        self._stores = StoreVersions()
        self._metrics = StoreMetrics()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._metrics)
        self._now = 0.0
        self._epoch = 0

    def input(self, rng: random.Random) -> bytes:
        self._epoch += rng.randrange(2)
        return json_like(rng, [REPORT | {"agent_epoch": self._epoch}])

    def feed(self, data: bytes) -> None:
        self._now += 1.0
        try:
            report = read_report(parse(data))
            self._leases.renew(report, self._now)
            for store, _ in self._stores.hear(report):
                self._metrics.told(report.site, store.pool, store.account)
        except (LeaseRefused, WireError) as error:
            raise Refusal(type(error).__name__, str(error)) from error
        # What the agent is told, what the next report meets, and what is shown of it.
        orjson.dumps({"stores": self._stores.of(report.site)})
        self._leases.drain(report.site)
        orjson.dumps(self._leases.standing(report.site).told())
        self._leases.expire(self._now)
        generate_latest(self._registry)


class Orderly:
    """What is posted to an agent, what a gateway answers it, and what operators order."""

    def __init__(self) -> None:
        self._orders = Orders(_members(), _Carrier())
        self._what = 0

    def input(self, rng: random.Random) -> bytes:
        self._what = rng.randrange(4)
        return json_like(rng, _ORDERS[self._what])

    def feed(self, data: bytes) -> None:
        try:
            match self._what:
                case 0:
                    read_names(parse(data))
                case 1:
                    read_workers(data)
                case 2:
                    read_standing(parse(data))
                case _:
                    _done(self._orders.take(parse_body(data)))
        except ApiError as error:
            error.body()
            raise Refusal(f"{error.status}", error.message) from error
        except (WireError, ValueError) as error:
            raise Refusal(type(error).__name__, str(error)) from error


_ORDERS: list[list[Any]] = [
    [{"workers": ["hami/p/0"]}],
    [[CONFIG]],
    [STANDING],
    [{"site": "hami", "undo": True}, {"worker": "hami/p/0"}],
]


class _Carrier:
    """Carries nothing out."""

    async def drain(self, site: str, *, undo: bool) -> None:
        pass

    async def replace(self, worker: str) -> None:
        pass


def _members() -> Members:
    members = Members(frozenset(), SITES)
    for name in ("hami/p/0", "shenzhen/q/0"):
        site, pool, _ = name.split("/")
        members.join(name, site, pool, frozenset({Role.MAIN}))
        members.learn(name, CameUp(hello=read_hello(HELLO | {"worker": name})))
    return members


def _done(doing: Coroutine[Any, Any, Any]) -> Any:
    """The result of what waits for nothing."""
    try:
        doing.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


class Stores:
    """Questions to a store, after the proof: their bytes over a socket of memory."""

    def __init__(self) -> None:
        self._store = BlockStore(StoreConfig(memory_bytes=1 << 20))
        self._server = StoreServer(self._store, _port(), "")

    def input(self, rng: random.Random) -> bytes:
        data = b"".join(rng.choices(_QUESTIONS, k=rng.randrange(1, 4)))
        return data if rng.random() < 0.2 else some_bytes(rng, data, _QUESTIONS)

    def feed(self, data: bytes) -> None:
        connection = _Bytes(data)
        wire = Wire(connection)  # type: ignore[arg-type]  # what a wire uses of a socket
        try:
            while connection.left:
                self._server.answer(wire)
        except (OSError, WireBroken, ValueError) as error:
            raise Refusal(type(error).__name__, str(error)) from error
        finally:
            assert len(connection.said) < MOST_ANSWERS, f"{len(connection.said)} bytes of answers"
            self._store.account()


class _Bytes:
    """A socket whose other end has said all that it will say."""

    family = None

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self.said = data, 0, bytearray()

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def recv_into(self, view: memoryview) -> int:
        part = self._data[self._at : self._at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def sendall(self, data: bytes) -> None:
        self.said += data

    def settimeout(self, seconds: float | None) -> None:
        pass


@functools.cache
def _port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _question(kind: Kind, *parts: bytes, code: int = 0, number: int = 0) -> bytes:
    said = _Bytes(b"")
    Wire(said).send(kind, *parts, code=code, number=number)  # type: ignore[arg-type]
    return bytes(said.said)


_KEYS = tuple(bytes([number]) * KEY_BYTES for number in range(4))
_BLOCK = b"of KV" * 20
_QUESTIONS = [
    _question(Kind.FIND, *_KEYS),
    _question(Kind.FIND, _KEYS[0], code=1),
    _question(Kind.GET, *_KEYS[:2]),
    _question(Kind.PUT, b"default", number=1)
    + _question(Kind.BLOCK, _KEYS[0], _BLOCK, number=checksum(_KEYS[0], _BLOCK)),
    _question(Kind.ACCOUNT),
    _question(Kind.HOLDINGS),
    _question(Kind.HOLDINGS, b"v" * VERSION_BYTES),
]
