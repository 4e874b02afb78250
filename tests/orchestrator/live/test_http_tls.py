"""HTTP between a deployment's processes with TLS: fronts, clients, channels and agents."""

import asyncio
import contextlib
import datetime
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.errors import UserError
from orchestrator.live.agent import SiteAgent, SiteSpec
from orchestrator.live.channel import Place, WorkerChannel
from orchestrator.live.gateway import gateway_tls
from orchestrator.live.http import base_url, reason, site_client
from orchestrator.live.launch import Deployment
from orchestrator.live.processes import LaunchFailed
from orchestrator.membership.reach import CameUp, Lost, News
from orchestrator.membership.standing import Standing
from orchestrator.topology.load import load_topology
from orchestrator.topology.schema import Security, Tls, Topology
from tests.orchestrator.live.channel_peer import NAME, WAIT_S, eventually, messages_line, serving
from tests.transport.tls_rig import Rig
from transport.tls import TlsContexts, TlsFiles, load_contexts, site_hostname
from workers.api.messages import Feed, Landed, UpMessage
from workers.service.front import Front, listen

SECRET = "s3cret"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


class Served:
    """A front, and what it served."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.requests: list[str] = []
        self.app = Starlette(
            routes=[
                Route("/long", self._long),
                Route("/{path:path}", self._any, methods=["GET", "POST"]),
            ]
        )

    async def _any(self, request: Request) -> Response:
        self.requests.append(request.url.path)
        if request.url.path == "/internal/lease":
            return JSONResponse({"renewed": True, "stores": {}, "standing": Standing().told()})
        return Response(request.headers["authorization"] + " " + request.url.scheme)

    async def _long(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for number in range(200):
                yield b"%04d" % number * 1000

        return StreamingResponse(parts())


@contextlib.asynccontextmanager
async def front(tls: ssl.SSLContext | None) -> AsyncIterator[Served]:
    with contextlib.closing(listen("127.0.0.1", 0)) as taken:
        served = Served(taken.getsockname()[1])
        server = Front(served.app, tls)
        task = asyncio.create_task(server.serve(sockets=[taken]))
        await server.up.wait()
        try:
            yield served
        finally:
            server.should_exit = True
            await task


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20.0):
            return await scenario

    return uvloop.run(bounded())


def test_a_site_asks_another(rig):
    async def scenario() -> None:
        tls = rig.client(rig.files("a"))
        async with (
            front(rig.server(rig.files("b"), "a", "b")) as served,
            site_client("b", SECRET, tls, timeout_s=5.0) as http,
        ):
            url = base_url(served.address, tls)
            assert (await http.get(f"{url}/one")).text == "Bearer s3cret https"
            assert (await http.post(f"{url}/two", content=b"x" * 300_000)).status_code == 200
            assert len((await http.get(f"{url}/long")).content) == 800_000
            async with http.stream("GET", f"{url}/long") as response:
                first = await anext(response.aiter_raw())
                assert first.startswith(b"0000")
            assert served.requests == ["/one", "/two"]

    run(scenario())


def test_without_tls_it_is_plain(rig):
    async def scenario() -> None:
        async with front(None) as served, site_client("b", SECRET, None, timeout_s=5.0) as http:
            answered = await http.get(f"{base_url(served.address, None)}/x")
            assert answered.text == "Bearer s3cret http"

    run(scenario())


# the client's and the server's files, and what the client must say
REFUSALS: dict[
    str, tuple[Callable[[Rig], ssl.SSLContext], Callable[[Rig], ssl.SSLContext], str]
] = {
    "no certificate": (
        lambda rig: rig.bare(),
        lambda rig: rig.server(rig.files("b")),
        "certificate required",
    ),
    "client of another CA": (
        lambda rig: rig.client(rig.foreign("a")),
        lambda rig: rig.server(rig.files("b")),
        "the peer refused our certificate: it is of another CA than its own",
    ),
    "server of another CA": (
        lambda rig: rig.client(rig.files("a")),
        lambda rig: rig.server(rig.foreign("b")),
        "the peer's certificate is of another CA",
    ),
    "another site's server": (
        lambda rig: rig.client(rig.files("a")),
        lambda rig: rig.server(rig.files("c")),
        "the peer's certificate is not of b.pdd.internal",
    ),
    "a client of a site that is not known": (
        lambda rig: rig.client(rig.files("c")),
        lambda rig: rig.server(rig.files("b"), "a", "b"),
        "",  # all it can see is that it is not wanted
    ),
    "expired client": (
        lambda rig: rig.client(rig.expired("a")),
        lambda rig: rig.server(rig.files("b")),
        "the peer refused our certificate: it has expired",
    ),
    "expired server": (
        lambda rig: rig.client(rig.files("a")),
        lambda rig: rig.server(rig.expired("b")),
        "the peer's certificate has expired",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_who_is_refused_gets_nothing_and_httpx_says_so(rig, name, caplog):
    client, server, says = REFUSALS[name]

    async def scenario() -> None:
        async with (
            front(server(rig)) as served,
            site_client("b", SECRET, client(rig), timeout_s=5.0) as http,
        ):
            for _ in range(2):
                with pytest.raises(httpx.HTTPError) as refused:
                    await http.get(f"https://{served.address}/x")
                assert not isinstance(refused.value, httpx.TimeoutException)
                assert says in f"{refused.value} {reason(refused.value)}"
            assert served.requests == []

    run(scenario())
    lines = [r.getMessage() for r in caplog.records if r.name == "transport.tls"]
    assert len(lines) == 2
    assert all(line.startswith("TLS connection refused: the peer") for line in lines)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_a_plain_client_gets_nothing(rig):
    async def scenario() -> None:
        async with (
            front(rig.server(rig.files("b"))) as served,
            site_client("b", SECRET, None, timeout_s=5.0) as http,
        ):
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get(f"http://{served.address}/x")
            assert served.requests == []

    run(scenario())


# ---------------------------------------------------------------------------------------- channels


class Ear:
    """Notes what a channel tells."""

    def __init__(self) -> None:
        self.up = 0
        self.reasons: list[str] = []
        self.messages: list[UpMessage] = []

    def learn(self, worker: str, news: News) -> None:
        if isinstance(news, CameUp):
            self.up += 1
        elif isinstance(news, Lost):
            self.reasons.append(news.reason)

    def heard(self, worker: str, messages: list[UpMessage]) -> None:
        self.messages += messages


@contextlib.asynccontextmanager
async def channel(port: int, tls: ssl.SSLContext, ear: Ear) -> AsyncIterator[WorkerChannel]:
    url = f"https://127.0.0.1:{port}"
    opened = WorkerChannel(
        NAME,
        Place(control=url, tokens=url),
        site="hami",
        gateway="gw-1",
        secret=SECRET,
        tls=tls,
        unreachable_s=1.0,
        listener=ear,
    )
    try:
        yield opened
    finally:
        await opened.close()


def test_a_channel_over_tls(rig):
    async def scenario() -> None:
        feed = Feed(request="r", epoch=1, law=1, start=0, ids=(5,))
        ear, landed = Ear(), Landed(request="r", epoch=1, covered=3)
        async with (
            serving(rig.server(rig.files("hami"), "shenzhen")) as peer,
            channel(peer.port, rig.client(rig.files("shenzhen")), ear) as opened,
        ):
            writer = await peer.stream()
            await eventually(lambda: ear.up == 1)
            writer.write(messages_line(landed))
            await eventually(lambda: ear.messages == [landed])
            opened.send(feed)
            assert (await peer.message("feed"))["ids"] == [5]

    run(scenario())


def test_a_channel_does_not_talk_to_another_site_and_says_why(rig, caplog):
    async def scenario() -> None:
        ear = Ear()
        async with (
            serving(rig.server(rig.files("mars"))) as peer,
            channel(peer.port, rig.client(rig.files("shenzhen")), ear),
        ):
            theirs = "transport.tls"
            await eventually(lambda: [r.name for r in caplog.records].count(theirs) > 2)
            assert peer.posts.empty()
            assert peer.opened.empty()
            assert ear.up == 0

    run(scenario())
    (told,) = [r for r in caplog.records if r.name == "orchestrator.live.channel"]
    assert told.reason.startswith(
        "the peer's certificate is not of hami.pdd.internal; "
        "ours is shenzhen.pdd.internal of CN=pdd CA "
    )


@pytest.mark.parametrize(
    ("whose", "why"),
    [
        ("worker", "the peer's certificate has expired"),
        ("gateway", "the peer refused our certificate: it has expired"),
    ],
)
def test_a_certificate_that_expires_ends_no_stream_and_lets_nobody_in_anew(rig, caplog, whose, why):
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3)

    def files(who: str, site: str) -> TlsFiles:
        return rig.brief(site, until) if who == whose else rig.files(site)

    async def scenario() -> None:
        ear = Ear()
        worker, gateway = files("worker", "hami"), files("gateway", "shenzhen")
        async with (
            serving(rig.server(worker, "shenzhen")) as peer,
            channel(peer.port, rig.client(gateway), ear) as opened,
        ):
            writer = await peer.stream()
            await eventually(lambda: ear.up == 1)
            assert datetime.datetime.now(datetime.UTC) < until, "it was good"
            sent: list[UpMessage] = []
            while datetime.datetime.now(datetime.UTC) < until + datetime.timedelta(seconds=1):
                sent.append(Landed(request="r", epoch=1, covered=len(sent)))
                writer.write(messages_line(sent[-1]))
                await asyncio.sleep(0.2)  # OpenSSL takes no clock of ours
            await eventually(lambda: ear.messages == sent)
            opened.send(Feed(request="r", epoch=1, law=1, start=0, ids=(5,)))
            assert (await peer.message("feed"))["ids"] == [5], "on the connection it has"
            assert ear.reasons == []
            writer.transport.abort()
            await eventually(lambda: any(why in reason for reason in ear.reasons))
            assert peer.opened.empty()
            assert ear.up == 1

    run(scenario())
    refused = [r.getMessage() for r in caplog.records if r.name == "transport.tls"]
    assert refused
    if whose == "gateway":
        assert "TLS connection refused: the peer's certificate has expired" in refused[0]


# ------------------------------------------------------------------------------------------ agents


class NoWorkers:
    """A placer with nothing to place."""

    def refusal(self, workers: int) -> str | None:
        return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def both(rig: Rig, site: str) -> TlsContexts:
    return load_contexts(rig.files(site), site, ["hami", "shenzhen"])


def test_an_agent_reports_to_its_gateway_and_to_nobody_else(rig):
    async def scenario() -> None:
        async with front(both(rig, "shenzhen").server) as gateway:
            spec = SiteSpec(
                site="hami",
                workers=(),
                gateways=(f"https://{gateway.address}",),
                gateway_site="shenzhen",
                port=free_port(),
            )
            agent = SiteAgent(spec, NoWorkers(), SECRET, both(rig, "hami"))
            ready = asyncio.Event()
            task = asyncio.create_task(agent.run(ready.set))
            await ready.wait()
            url = f"127.0.0.1:{spec.port}"
            try:
                tls = rig.client(rig.files("shenzhen"))
                async with site_client("hami", SECRET, tls, timeout_s=5.0) as http:
                    await eventually(lambda: gateway.requests == ["/internal/lease"])
                    inventory = (await http.get(f"https://{url}/inventory")).json()
                    assert (inventory["site"], inventory["lease"]) == ("hami", "renewed")
                async with site_client("hami", SECRET, None, timeout_s=5.0) as http:
                    with pytest.raises(httpx.RemoteProtocolError):
                        await http.get(f"http://{url}/inventory")
                async with site_client("hami", SECRET, rig.bare(), timeout_s=5.0) as http:
                    with pytest.raises(httpx.ReadError, match="certificate required"):
                        await http.post(f"https://{url}/stop")
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    run(scenario())


def test_an_agent_whose_gateway_is_another_site_reports_nothing_and_says_why(rig):
    async def scenario() -> None:
        async with front(rig.server(rig.files("mars"))) as gateway:
            spec = SiteSpec(
                site="hami",
                workers=(),
                gateways=(f"https://{gateway.address}",),
                gateway_site="shenzhen",
                port=free_port(),
            )
            agent = SiteAgent(spec, NoWorkers(), SECRET, both(rig, "hami"))
            ready = asyncio.Event()
            task = asyncio.create_task(agent.run(ready.set))
            try:
                tls = rig.client(rig.files("shenzhen"))
                async with (
                    asyncio.timeout(WAIT_S),
                    site_client("hami", SECRET, tls, timeout_s=5.0) as http,
                ):
                    await ready.wait()
                    said = ""
                    while site_hostname("shenzhen") not in said:
                        answered = await http.get(f"https://127.0.0.1:{spec.port}/inventory")
                        said = answered.json()["lease"]
                        await asyncio.sleep(0.02)
                assert (
                    "the peer's certificate is not of shenzhen.pdd.internal; ours is hami" in said
                )
                assert gateway.requests == []
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    run(scenario())


# -------------------------------------------------------------------------------------- deployments


def topology(root: Path, files: TlsFiles) -> Topology:
    """Two local sites that are said to have the same files."""
    loaded = load_topology(root / "configs" / "topologies" / "laptop-simulated.yaml")
    tls = Tls(ca=str(files.ca), cert=str(files.cert), key=str(files.key))
    return loaded.model_copy(update={"security": Security(tls=tls)})


def test_a_deployment_whose_agent_is_not_who_it_should_be_fails_at_once(rig, root):
    """Waiting would not help."""

    async def scenario() -> None:
        async with front(rig.server(rig.files("mars"))) as served:
            deployment = Deployment(
                topology(root, rig.files("shenzhen")),
                model="simulated",
                gateways=["127.0.0.1:1"],
                secret=SECRET,
                tls=rig.client(rig.files("shenzhen")),
                progress=lambda _: None,
            )
            deployment.agents = {"hami": served.address}
            with pytest.raises(LaunchFailed) as failed:
                await deployment._until_up()
            assert str(failed.value).startswith(
                "agent of hami: the peer's certificate is not of hami.pdd.internal; "
                "ours is shenzhen.pdd.internal of CN=pdd CA "
            )
            assert served.requests == []

    run(scenario())


def test_a_gateway_needs_its_own_sites_certificate(rig, root):
    good = gateway_tls(topology(root, rig.files("shenzhen")))
    assert good is not None
    assert good.client.verify_mode is ssl.CERT_REQUIRED
    files = rig.files("hami")
    with pytest.raises(UserError) as wrong:
        gateway_tls(topology(root, files))
    assert str(wrong.value) == (
        f"security.tls: {files.cert}: it is not a certificate for site shenzhen: "
        "it needs the DNS name shenzhen.pdd.internal, it has hami.pdd.internal"
    )
