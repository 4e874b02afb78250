"""The gateway as a whole: accounts, metrics, status, keys, and how it ends."""

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import uvloop

from orchestrator.live.gateway import read_card
from tests.orchestrator.live.channel_peer import Peer, Post, messages_line
from tests.orchestrator.live.gateway_world import KEY, MODEL, SECRET, WORKERS, World, play, world
from workers.api.messages import Landed
from workers.engines.models import resolve_model


def test_a_relayed_request_shows_in_its_account_in_metrics_and_in_status() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        answer = w.complete()
        prefill = await w.peers["hami/p/0"].message("start")
        relay = await w.peers["hami/r/0"].message("start")
        main = await w.peers["shenzhen/q/0"].message("start")
        w.says("hami/p/0", prefill, 0, [], 10)
        await w.law_reaches("hami/r/0", 1)
        w.says("hami/r/0", relay, 1, [10], 11)
        await w.law_reaches("shenzhen/q/0", 2)
        landed = Landed(request=main["request"], epoch=main["epoch"], covered=0)
        w.writers["shenzhen/q/0"].write(messages_line(landed))
        w.says("shenzhen/q/0", main, 2, [10, 11], 12)
        told = (await answer).json()
        assert told["pdd"]["token_ids"] == [10, 11, 12]
        assert (told["pdd"]["route"], told["pdd"]["handoff_index"]) == ("relay", 2)
        scraped = (await w.get("/metrics")).text
        assert 'pdd_handoffs_total{handoff="catch-up",model="smollm2-135m"} 1.0' in scraped
        assert (
            'pdd_requests_total{model="smollm2-135m",outcome="length",route="relay"} 1.0' in scraped
        )
        assert (
            'pdd_decoded_tokens_total{model="smollm2-135m",role="relay",site="hami"} 1.0' in scraped
        )
        assert 'pdd_kv_free_tokens{pool="q",site="shenzhen",worker="shenzhen/q/0"} 2048' in scraped
        status = (await w.get("/status")).json()
        assert status["ready"]
        assert status["requests"] == {"open": 0, "queued": 0}
        assert [(x["name"], x["state"]) for x in status["workers"]] == [
            (name, "up") for name in sorted(WORKERS)
        ]
        assert status["links"][0]["rtt_s"] == 0.05
        assert status["links"][0]["emulator"] is None, "the line is real"

    play(scenario)


def test_losses_and_failures_show_in_metrics() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        answer = w.complete()
        await w.peers["hami/p/0"].message("start")
        for peer in w.peers.values():
            await peer.stop()
        scraped = await w.until("/metrics", lambda a: 'event="workers_lost"} 3.0' in a.text)
        assert 'pdd_core_events_total{event="main_lost"}' in scraped.text
        assert (await w.get("/ready")).status_code == 503
        refused = await w.complete()
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)

    play(scenario)


def test_the_end_is_told_to_a_client_that_waits() -> None:
    async def whole() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w = await stack.enter_async_context(world())
            await w.all_up()
            streaming = w.complete(stream=True)
            start = await w.peers["hami/p/0"].message("start")
            w.says("hami/p/0", start, 0, [], 10)
            await w.law_reaches("hami/r/0", 1)
            ending = asyncio.create_task(stack.aclose())
            text = (await streaming).text
            await ending
        assert "the service is shutting down" in text
        assert text.endswith("data: [DONE]\n\n")

    uvloop.run(whole())


def test_a_client_that_leaves_without_streaming_frees_every_leg() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        answer = w.complete()
        starts = {name: await peer.message("start") for name, peer in w.peers.items()}
        w.says("hami/p/0", starts["hami/p/0"], 0, [], 10)
        await w.law_reaches("hami/r/0", 1)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        for name, peer in w.peers.items():
            stop = await peer.message("stop")
            assert (stop["request"], stop["epoch"]) == (
                starts[name]["request"],
                starts[name]["epoch"],
            )
        status = (await w.get("/status")).json()
        assert status["requests"] == {"open": 0, "queued": 0}
        scraped = (await w.get("/metrics")).text
        assert (
            'pdd_requests_total{model="smollm2-135m",outcome="cancelled",route="relay"} 1.0'
            in scraped
        )

    play(scenario)


def test_what_clients_do_wrong_is_no_failure_of_a_worker() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        before = (await w.get("/status")).json()
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"model": "another"}, 404),
            ({"temperature": 9}, 400),
            ({"prompt": [1] * 9000}, 400),
            ({"prompt": [1] * 600}, 400),  # the model could, no worker has room
            ({"prompt": "x" * (11 << 20)}, 413),
        ]
        for fields, status in wrong * 2:
            answer = await w.complete(**fields)
            assert answer.status_code == status, answer.text
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        after = (await w.get("/status")).json()
        assert [(x["name"], x["state"]) for x in after["workers"]] == [
            (x["name"], "up") for x in before["workers"]
        ]
        assert after["requests"] == {"open": 0, "queued": 0}
        assert after["counts"] == {"failed_too_long": 2}, "of requests; nothing of workers"
        for peer in w.peers.values():
            assert not [kind for post in _told(peer) for kind in post.kinds]

    play(scenario)


def _told(peer: Peer) -> list[Post]:
    """What the gateway has posted and nobody has looked at."""
    return [peer.posts.get_nowait() for _ in range(peer.posts.qsize())]


def test_agents_and_clients_have_keys_of_their_own() -> None:
    async def scenario(w: World) -> None:
        assert (await w.lease("hami", KEY)).status_code == 401
        assert (await w.http.get(f"{w.url}/status", headers=SECRET)).status_code == 401
        assert (await w.http.get(f"{w.url}/health")).status_code == 200
        bad = await w.http.post(f"{w.internal}/internal/lease", json={"site": 1}, headers=SECRET)
        assert (bad.status_code, bad.json()["error"]) == (
            400,
            "site: missing, or not of type str",
        )
        assert (await w.http.post(f"{w.internal}/internal/x", headers=SECRET)).status_code == 404
        assert (await w.http.post(f"{w.url}/internal/lease", headers=KEY)).status_code == 404

    play(scenario)


def test_the_card_is_read_from_the_models_own_files(tmp_path: Path) -> None:
    directory = resolve_model(MODEL)
    card = read_card("/somewhere/smol", directory)
    assert (card.name, card.max_context, card.vocab_size) == ("smol", 8192, 49152)
    assert card.stop_ids == (2,)
    model = tmp_path / "gpt2"
    shutil.copytree(directory, model, ignore=shutil.ignore_patterns("*.safetensors"))
    config = {"model_type": "gpt2", "n_positions": 77, "vocab_size": 99, "eos_token_id": 5}
    (model / "config.json").write_text(json.dumps(config))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    card = read_card("gpt2", model)
    assert (card.max_context, card.vocab_size, card.stop_ids) == (77, 99, (5, 6))


def test_a_gateway_that_fails_before_it_serves_says_so_at_once() -> None:
    async def scenario(w: World) -> None:
        async def fails() -> None:
            raise OSError("no socket")

        began = asyncio.get_running_loop().time()
        with pytest.raises(OSError, match="no socket"):
            await w.gateway.ready(60.0, asyncio.create_task(fails()))
        assert asyncio.get_running_loop().time() - began < 30.0

    play(scenario)


def test_a_gateway_of_sites_elsewhere_waits_and_says_for_what() -> None:
    async def scenario(w: World) -> None:
        told: list[str] = []
        heard = asyncio.Event()
        running: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
        waiting = asyncio.create_task(
            w.gateway.ready(None, running, lambda line: (told.append(line), heard.set()))
        )
        await heard.wait()
        assert not waiting.done()
        await w.all_up()
        assert await waiting is None
        assert told[0] == "waiting for workers: hami/p/0, hami/r/0, shenzhen/q/0"
        assert len(set(told)) == len(told)
        running.cancel()

    play(scenario)


def test_one_that_takes_anothers_place_waits_for_some_worker_only() -> None:
    async def scenario(w: World) -> None:
        never = asyncio.create_task(asyncio.Event().wait())
        assert (await w.lease("hami", state="failed")).status_code == 200
        assert (await w.lease("shenzhen")).status_code == 200
        w.writers["shenzhen/q/0"] = await w.peers["shenzhen/q/0"].stream()
        assert await w.gateway.ready(8.0, never) is None
        never.cancel()

    play(scenario, replaces=True)
