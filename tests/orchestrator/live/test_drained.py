"""Requests for a model whose site drains, or is gone: a status at once, and never a hang."""

import asyncio
import time

import httpx
import pytest

from tests.orchestrator.live.gateway_world import World, play

SOON_S = 15.0  # a request may wait for 30 s, and a test's machine be busy


async def refused(w: World) -> httpx.Response:
    """A request now; the answer, which must come soon."""
    began = time.monotonic()
    answer = await w.complete()
    assert time.monotonic() - began < SOON_S
    return answer


@pytest.mark.parametrize("state", ["draining", "drained"])
def test_with_every_site_drained_its_model_is_unavailable_at_once(state: str) -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        for site in ("hami", "shenzhen"):
            assert (await w.lease(site, state=state)).status_code == 200
        answer = await refused(w)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "unavailable"
        assert (await w.get("/ready")).status_code == 503
        assert (await w.complete(model="another")).status_code == 404, "it never was here"
        assert (await w.get("/status")).json()["requests"] == {"open": 0, "queued": 0}

    play(scenario)


def test_what_a_site_has_begun_goes_on_while_it_drains() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        answer = w.complete(max_tokens=1, pdd_timings=False, pdd_token_ids=False)
        start = await w.peers["hami/p/0"].message("start")
        for site in ("hami", "shenzhen"):
            await w.lease(site, state="draining")
        w.says("hami/p/0", start, 0, [], 10)
        assert (await answer).status_code == 200
        assert (await refused(w)).status_code == 503

    play(scenario)


def test_with_one_site_drained_the_other_serves_whatever_its_role() -> None:
    async def scenario(w: World) -> None:
        await w.all_up()
        await w.lease("hami", state="drained")
        answer = w.complete(max_tokens=1, pdd_timings=False, pdd_token_ids=False)
        async with asyncio.timeout(SOON_S):
            start = await w.peers["shenzhen/q/0"].message("start")
        assert start["role"] == "prefill"
        w.says("shenzhen/q/0", start, 0, [], 10)
        assert (await answer).status_code == 200

    play(scenario)
