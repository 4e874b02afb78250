"""What a site's stores of KV blocks tell the gateways, by their agent."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transport.tls import TlsContexts
from workers.storage.process import StoreProcessConfig
from workers.tiers.client import StoreAway, StoreClient
from workers.tiers.holdings import AWAY

ANSWER_S = 0.5  # a store that takes longer is away: the lease does not wait for it


class SiteStores:
    """The way to each of a site's stores."""

    def __init__(
        self, stores: Sequence[StoreProcessConfig], secret: str, tls: TlsContexts | None
    ) -> None:
        dialled = None if tls is None else tls.client
        self._clients = {
            store.pool: StoreClient(store.address, secret, site=store.site, tls=dialled)
            for store in stores
        }

    async def told(self, known: Mapping[str, str]) -> list[dict[str, Any]]:
        """For a gateway that knows these versions, by pool; see `reports.StoreReport`."""
        asked = (
            asyncio.to_thread(_told, pool, client, known.get(pool, ""))
            for pool, client in self._clients.items()
        )
        return list(await asyncio.gather(*asked))


def _told(pool: str, client: StoreClient, since: str) -> dict[str, Any]:
    """One store's report; one that is away has nothing, as far as anybody can use it."""
    deadline = time.monotonic() + ANSWER_S
    told, account = AWAY, None
    with contextlib.suppress(StoreAway):
        told, account = client.holdings(bytes.fromhex(since), deadline), client.account(deadline)
    return {"pool": pool, "since": since, "account": account, **told.told_on()}
