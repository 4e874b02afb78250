"""A whole deployment in virtual time; everything random in it comes from one seed."""

from collections.abc import Callable
from math import inf
from random import Random

from orchestrator.virtual.agent import VirtualAgent
from orchestrator.virtual.client import Client
from orchestrator.virtual.gateway import VirtualGateway
from orchestrator.virtual.kv.plane import KVPlane
from orchestrator.virtual.network import Network
from orchestrator.virtual.process import Process
from orchestrator.virtual.promises import Breach, Promise
from orchestrator.virtual.schedule import Schedule
from orchestrator.virtual.setup import Ask, Setup, WorkerSpec
from orchestrator.virtual.stores.store import VirtualStore
from orchestrator.virtual.worker import VirtualWorker

QUIET_CHECK_S = 0.5
# So long after a fault its last messages may still be on their way, or be tried again.
PEACE_S = 5.0
FREE_S = 1.0


class World:
    """Runs calls in order of (time, number). Built, it has begun: at time 0 all processes start.

    `mild`: nothing will be done to it that may cost a deadline. `breaches` collects broken
    promises as they are seen; `faults.checks` adds those that show at the end.
    """

    def __init__(self, setup: Setup, *, seed: int = 0, mild: bool = False) -> None:
        self.setup = setup
        self.mild = mild
        self.schedule = Schedule()
        self.breaches: list[Breach] = []
        self.clients: dict[str, Client] = {}
        self.ended: list[VirtualGateway] = []  # gateways that were killed
        self.frozen_s = [0.0] * setup.gateways  # how long each gateway's place was frozen in all
        self.accidents: dict[str, list[float]] = {}  # those under way, by kind
        self.troubled_since: float | None = None  # when the first fault came
        self.troubled_until = -inf  # when the last fault so far ends
        self.network = Network(
            self.schedule,
            Random(seed),
            one_way_s=setup.one_way_s,
            bytes_per_s=setup.bytes_per_s,
            jitter_s=setup.jitter_s,
        )
        self.stores = {spec.name: VirtualStore(spec, self.schedule) for spec in setup.stores}
        for store in self.stores.values():
            store.boot()
        self.workers = {spec.name: self._new_worker(spec) for spec in setup.workers}
        self._starts = [0] * setup.gateways
        self.gateways = [self._new_gateway(place) for place in range(setup.gateways)]
        self.agents = {site: self._new_agent(site) for site in setup.sites}
        for agent in self.agents.values():
            agent.boot()

    # ------------------------------------------------------------ running

    @property
    def now(self) -> float:
        return self.schedule.now

    def run(self, until: float, *, stop: Callable[[], bool] | None = None) -> bool:
        """Run to a time, or until `stop` says so after some call; whether it did."""
        return self.schedule.run(until, stop) or (stop is not None and stop())

    def settle(self, most_s: float) -> bool:
        """Run until all is quiet, for at most so long; whether it is."""
        end = self.now + most_s
        while not self.quiet():
            if self.now >= end:
                return False
            self.run(min(end, self.now + QUIET_CHECK_S))
        return True

    def quiet(self) -> bool:
        """No client waits, and nobody holds or does anything for a request."""
        return (
            not any(client.waits for client in self.clients.values())
            and not any(g.machine.requests for g in self.gateways if g.process.alive)
            and all(worker.idle for worker in self.workers.values())
        )

    # ------------------------------------------------------------ clients

    def ask(self, ask: Ask) -> Client:
        """A request comes now, whatever `ask.at` says."""
        client = Client(
            ask=ask,
            asked_at=self.now,
            report=self.breaches.append,
            on_end=lambda: self.request_ended(ask.arrived.request),
        )
        self.clients[client.name] = client
        gateway = self.gateways[ask.gateway]
        if gateway.process.alive:
            gateway.process.do(gateway.take, client)
        else:
            client.cut_off = True  # connection refused
        if ask.leaves_after is not None:
            self.schedule.after(ask.leaves_after, self.leave, client.name)
        return client

    def trouble(self, seconds: float) -> None:
        """A fault begins, and lasts so long."""
        if self.troubled_since is None:
            self.troubled_since = self.now
        self.troubled_until = max(self.troubled_until, self.now + seconds)

    def request_ended(self, request: str) -> None:
        """A client needs no more of it: its KV must be free soon, unless there is trouble."""
        self.schedule.after(FREE_S + 2 * self.setup.one_way_s, self._free_by_now, request, self.now)

    def _free_by_now(self, request: str, ended_at: float) -> None:
        if self.troubled_until > ended_at - PEACE_S:
            return
        for worker in self.workers.values():
            if worker.process.alive and worker.core.legs_of(request):
                seen = f"{worker.spec.name} still has a leg, it ended at {ended_at:.3f}"
                self.breaches.append(
                    Breach(promise=Promise.FREE_SOON, who=request, at=self.now, seen=seen)
                )

    def leave(self, name: str) -> None:
        """A client closes its connection, if it still waits."""
        client = self.clients[name]
        if client.waits:
            client.left = True
            self.request_ended(name)
            gateway = self.gateways[client.ask.gateway]
            if gateway.name == client.gateway:
                gateway.process.do(gateway.leave, client)

    # ------------------------------------------------------------ life and death

    def kill_worker(self, name: str, *, back_after: float | None = None) -> None:
        """SIGKILL; with `back_after` it is started again so many seconds later."""
        worker = self.workers[name]
        if worker.process.alive:
            worker.process.kill()
            if back_after is not None:
                self.schedule.after(back_after, worker.boot)

    def kill_store(self, name: str, *, back_after: float) -> None:
        """SIGKILL; it is started again, and reads its files."""
        store = self.stores[name]
        if store.process.alive:
            store.process.kill()
            self.schedule.after(back_after, store.boot)

    def delay_store(self, name: str, late_s: float, seconds: float) -> None:
        """Its answers take longer for a while."""
        store = self.stores[name]
        store.late_s += late_s
        self.schedule.after(seconds, self._in_time, store, late_s)

    def kill_agent(self, site: str, *, back_after: float) -> None:
        """SIGKILL; a new agent adopts the workers."""
        agent = self.agents[site]
        if agent.process.alive:
            agent.process.kill()
            self.schedule.after(back_after, agent.boot)

    def kill_gateway(self, place: int, *, back_after: float) -> None:
        """SIGKILL; its open streams break, and another one takes its place."""
        gateway = self.gateways[place]
        if not gateway.process.alive:
            return
        gateway.process.kill()
        self.ended.append(gateway)
        for client in self.clients.values():
            if client.ask.gateway == place and client.waits:
                client.cut_off = True
        self.schedule.after(back_after, self._replace_gateway, place)

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if process.alive and not process.frozen:
            process.freeze()
            self.schedule.after(seconds, self._thaw, process, process.life)

    def freeze_gateway(self, place: int, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later; its clients' deadlines wait as long."""
        self.freeze(self.gateways[place].process, seconds)
        self.frozen_s[place] += seconds

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Nothing passes from one site or process to another for a while."""
        self.network.cut(source, target)
        self.schedule.after(seconds, self.network.heal, source, target)

    def processes(self) -> list[Process]:
        """All processes that are there now, in a fixed order."""
        owners: list[VirtualWorker | VirtualAgent | VirtualGateway | VirtualStore]
        owners = [
            *self.workers.values(),
            *self.agents.values(),
            *self.gateways,
            *self.stores.values(),
        ]
        return [owner.process for owner in owners]

    def _in_time(self, store: VirtualStore, late_s: float) -> None:
        store.late_s -= late_s

    def _thaw(self, process: Process, life: int) -> None:
        if process.life == life:
            process.thaw()

    def _replace_gateway(self, place: int) -> None:
        self.gateways[place] = self._new_gateway(place)

    def _new_gateway(self, place: int) -> VirtualGateway:
        self._starts[place] += 1
        return VirtualGateway(
            f"g{place}/{self._starts[place]}",
            self.setup,
            self.schedule,
            self.network,
            self.workers,
            self.breaches.append,
        )

    def _new_worker(self, spec: WorkerSpec) -> VirtualWorker:
        stores = self._stores_of(spec.site)
        stores.sort(key=lambda store: store.spec.pool != spec.pool)
        return VirtualWorker(
            spec,
            self.setup,
            self.schedule,
            self.network,
            self._plane,
            self.breaches.append,
            stores if stores and stores[0].spec.pool == spec.pool else (),
        )

    def _new_agent(self, site: str) -> VirtualAgent:
        workers = [worker for worker in self.workers.values() if worker.spec.site == site]
        return VirtualAgent(
            site,
            self.setup,
            self.schedule,
            self.network,
            workers,
            self._stores_of(site),
            lambda: self.gateways,
        )

    def _stores_of(self, site: str) -> list[VirtualStore]:
        return [store for store in self.stores.values() if store.spec.site == site]

    def _plane(self, worker: str) -> KVPlane | None:
        found = self.workers[worker]
        return found.kv if found.process.alive else None
