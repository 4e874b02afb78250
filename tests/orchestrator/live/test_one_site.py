"""What `pdd site` tells of a site that is up: changes, each once."""

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from orchestrator.live import one_site
from orchestrator.live.one_site import OneSite


class Deployment:
    """What its agent says, look by look; None: it does not answer. `over`: all were looked at."""

    def __init__(self, looks: list[dict[str, Any] | None]) -> None:
        self.agents = {"hami": "10.0.0.1:7000"}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()
        self._looks = looks

    async def inventory(self, site: str) -> dict[str, Any]:
        if not self._looks:
            self.over.set()
            await asyncio.Future()
        look = self._looks.pop(0)
        if look is None:
            raise httpx.ConnectError("refused")
        return look


def look(state: str, lease: str, epoch: int, reason: str | None = None) -> dict[str, Any]:
    worker = {"name": "hami/p/0", "state": state, "reason": reason}
    return {"workers": [worker], "lease": lease, "agent_epoch": epoch}


def test_what_changes_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_site, "LOOK_S", 0.0)
    lines: list[str] = []

    async def scenario() -> None:
        deployment: Any = Deployment(
            [
                look("up", "not yet renewed", 1),
                look("up", "renewed", 1),
                look("up", "renewed", 1),
                look("restarting", "renewed", 1, "loading model"),
                None,
                None,
                look("up", "renewed", 2),
            ]
        )
        watching = asyncio.create_task(OneSite("hami", deployment, "-", None).watch(lines.append))
        await deployment.over.wait()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())
    assert lines == [
        "lease: not yet renewed",
        "agent: there, epoch 1",
        "lease: renewed",
        "worker hami/p/0: restarting: loading model",
        "agent: away (ConnectError), the workers go on",
        "worker hami/p/0: up",
        "agent: there, epoch 2",
    ]
