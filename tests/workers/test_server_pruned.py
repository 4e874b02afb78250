"""Worker processes that prune: what crosses the socket, what is said of memory, the same tokens."""

from collections.abc import Iterator

import pytest

from tests.workers.server_rig import PROMPT, Reader, Server, wait_until
from workers.api.messages import Feed, KVStats, Load, Role, SendKV, Start, Stop, TokenRun

EVICT = {"policy": "random", "budget": 60, "slack": 10, "recent": 16, "first": 4, "low": 1.0}
NEW = 30


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("pruned")
    made = [Server(folder, "a", eviction=EVICT), Server(folder, "b", block_size=32)]
    try:
        yield [server.up() for server in made]
        assert [server.held_tokens() for server in made] == [0, 0]
    finally:
        for server in made:
            server.kill()


def tokens(request: str, prefill: Server, main: Server, raw_tokens: int | None) -> list[int]:
    """A request's tokens; `raw_tokens`: whose KV crosses to another worker."""
    down, up = Reader(prefill, f"{request}-p"), Reader(main, f"{request}-m")
    leg = {"request": request, "limit": NEW, "reserve": len(PROMPT) + NEW, "prompt_ids": PROMPT}
    leg["cache_salt"] = request  # nothing of another request is found
    main.post("/control", Start(epoch=2, role=Role.MAIN, gateway=f"{request}-m", **leg))
    address = None if prefill is main else f"127.0.0.1:{main.kv_port}@there"
    sends = SendKV(
        request=request,
        epoch=1,
        to_worker="a" if prefill is main else "other",
        to_epoch=2,
        start=0,
        stop=len(PROMPT),
        address=address,
    )
    start = Start(epoch=1, role=Role.PREFILL, gateway=f"{request}-p", **leg)
    prefill.post("/control", start, sends)
    first = wait_until(lambda: down.of(TokenRun, request))[0]
    main.post("/feed", Feed(request=request, epoch=2, law=1, start=0, ids=first.ids))
    wait_until(lambda: len(up.ids(request, 2)) == NEW - 1)
    if raw_tokens is not None:
        (stats,) = up.of(KVStats, request)
        per_token = main.http.get("/info").json()["kv_bytes_per_token"]
        assert stats.bytes_raw == raw_tokens * per_token
    prefill.post("/control", Stop(request=request, epoch=1))
    main.post("/control", Stop(request=request, epoch=2))
    wait_until(lambda: prefill.held_tokens() == main.held_tokens() == 0)
    said = [*first.ids, *up.ids(request, 2)]
    down.close()
    up.close()
    return said


def test_pruned_or_not_here_or_there_the_same_tokens(servers: list[Server]) -> None:
    pruning, keeping = servers
    plain = tokens("plain", keeping, pruning, len(PROMPT))
    assert tokens("pruned", pruning, keeping, 60) == plain  # modelled tokens do not tell what dies


def test_a_worker_tells_what_eviction_has_come_to(servers: list[Server]) -> None:
    pruning, _ = servers
    tokens("told", pruning, pruning, None)
    readers = [Reader(server, "told-load") for server in servers]
    here, there = (wait_until(lambda r=r: r.of(Load))[-1] for r in readers)
    assert here.kv_evicted_tokens >= len(PROMPT) - 60
    assert here.kv_freed_blocks > 0
    assert (there.kv_evicted_tokens, there.kv_waste) == (0, None)
    for reader in readers:
        reader.close()
