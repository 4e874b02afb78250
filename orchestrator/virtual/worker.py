"""A worker process in virtual time: the real core over the simulated engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from orchestrator.membership.reports import Hello
from orchestrator.virtual.kv.plane import KVPlane
from orchestrator.virtual.network import Connection, Network
from orchestrator.virtual.process import ClockError, Process
from orchestrator.virtual.promises import Breach, Promise, defect
from orchestrator.virtual.schedule import Schedule
from orchestrator.virtual.setup import Setup, WorkerSpec
from orchestrator.virtual.stores.moves import VirtualStorage
from orchestrator.virtual.stores.store import VirtualStore
from transport.base import StreamId
from workers.api.messages import (
    HEARTBEAT_S,
    DownMessage,
    Sampling,
    Stop,
    TokenRun,
    UpMessage,
)
from workers.costs import MeasuredCosts
from workers.engines.base import SeqId, SequenceSpec, Step
from workers.engines.simulated.engine import SimulatedEngine, WrongKV
from workers.engines.simulated.model import SimulatedModel
from workers.outputs import (
    CloseStream,
    DropImport,
    LoadBlocks,
    OpenStream,
    Output,
    SaveBlocks,
    Up,
)
from workers.sharing import told_to
from workers.streams.packed import packed
from workers.streams.recent import RecentAnswers
from workers.worker import Worker

T = TypeVar("T")

CHUNK_TOKENS = 128

Hear = Callable[[Connection, "Hello | Sequence[UpMessage]"], None]


def model_of(setup: Setup, salt: int = 0) -> SimulatedModel:
    """The small model that every worker of a deployment serves."""
    return SimulatedModel(
        layers=1,
        head_size=4,
        end_rate=setup.end_rate,
        vocab_size=setup.vocab_size,
        divergence=setup.divergence,
        salt=salt,
    )


class VirtualWorker:
    """What `workers.service` is to a real worker, without threads and sockets.

    `boot` begins a life with an empty pool; between two lives there is no core.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        setup: Setup,
        schedule: Schedule,
        network: Network,
        find: Callable[[str], KVPlane | None],
        breach: Callable[[Breach], None],
        stores: Sequence[VirtualStore] = (),
    ) -> None:
        """`stores`: its site's, if its pool has one; the one to save to first."""
        self.spec = spec
        self._stores = stores
        self._breach = breach
        clock = setup.clocks.get(spec.name, ClockError())
        self.process = Process(spec.name, spec.site, schedule, clock)
        self._setup = setup
        self._network = network
        self._find = find

    def boot(self) -> None:
        spec, setup = self.spec, self._setup
        self.process.start()
        self.engine = SimulatedEngine(
            model_of(setup, spec.salt),
            MeasuredCosts(
                prefill_tokens_per_s=spec.prefill_tokens_per_s, decode_step_s=spec.step_s
            ),
            kv_total_tokens=spec.kv_tokens,
            chunk_tokens=CHUNK_TOKENS,
            eviction=spec.eviction,
        )
        self.core = Worker(
            spec.name,
            self.engine,
            slots=spec.slots,
            hold_s=setup.hold_s,
            lease_s=setup.lease_s,
            stores=bool(self._stores),
        )
        self.storage = VirtualStorage(
            self.process,
            self.engine,
            self._stores,
            self._network,
            line_bytes_per_s=setup.bytes_per_s if len(setup.sites) > 1 else None,
            loaded=self._blocks_loaded,
            wrong=self._wrong_block,
        )
        self.kv = KVPlane(self, self._network, self._find)
        self.hello = Hello(
            worker=spec.name,
            incarnation=f"life {self.process.life}",
            pid=1,  # as in a container
            slots=spec.slots,
            max_context=self.engine.info.max_context,
            kv_total_tokens=self.engine.info.kv_total_tokens,
            kv_bytes_per_token=self.engine.info.kv_bytes_per_token,
            keeps=None if spec.eviction is None else spec.eviction.plain,
        )
        self._recent = RecentAnswers()
        self._streams: dict[str, tuple[Connection, Hear]] = {}
        self._step: Step | None = None
        self._cancelled: set[SeqId] = set()
        self._wake_at: float | None = None
        self._filled = 0
        self.process.after(HEARTBEAT_S, self._beat)

    @property
    def idle(self) -> bool:
        """Alive or not, it holds nothing for anybody and does nothing."""
        return not self.process.alive or (
            self.core.idle and self.kv.idle and self.engine.kv_held_tokens() == 0
        )

    # ------------------------------------------------------------ what gateways ask

    def take(self, messages: Sequence[DownMessage], gateway: str) -> None:
        """A post of a gateway; a stop also cuts a running step short that nobody else wants."""
        now = self.process.time()
        self.core.gateway_seen(gateway, now)
        for message in messages:
            if isinstance(message, Stop):
                self._cancel(SeqId(message.request, message.epoch))

        def handle() -> Sequence[Output]:
            return [output for m in messages for output in self.core.handle(m, now)]

        self._turn(handle)

    def open_tokens(self, gateway: str, connection: Connection, hear: Hear) -> None:
        """A gateway opens its token stream, in place of an older one."""
        now = self.process.time()
        self.core.gateway_seen(gateway, now)
        older = self._streams.get(gateway)
        if older is not None:
            older[0].close(self.process, "the gateway opened another token stream")
        self._streams[gateway] = connection, hear
        connection.send(self.process, hear, connection, self.hello)
        recent = self._recent.recent(gateway, now)
        if recent:
            self._say(gateway, recent)

    def tokens_ended(self, gateway: str, connection: Connection) -> None:
        """A token stream is closed, or broken."""
        current = self._streams.get(gateway)
        if current is not None and current[0] is connection:
            del self._streams[gateway]

    # ------------------------------------------------------------ what its KV plane asks

    def submit(self, call: Callable[[Worker, float], Sequence[Output]]) -> None:
        """Do this with the core, and carry out what comes of it."""
        self._turn(lambda: call(self.core, self.process.time()))

    def look(self, call: Callable[[Worker, float], T]) -> T:
        """Ask the core something that does not touch the engine."""
        return call(self.core, self.process.time())

    def wrong_kv(self, stream: StreamId, error: WrongKV) -> None:
        """KV came that is not its tokens'."""
        at = self.process.schedule.now
        self._breach(Breach(promise=Promise.INTACT, who=stream.request, at=at, seen=str(error)))

    # ------------------------------------------------------------ what its site's stores give

    def _blocks_loaded(self, seq: SeqId) -> None:
        self.submit(lambda core, now: core.blocks_loaded(seq, now))

    def _wrong_block(self, seq: SeqId, error: WrongKV) -> None:
        """A store's block is not the KV of its tokens."""
        at = self.process.schedule.now
        self._breach(Breach(promise=Promise.INTACT, who=seq.request, at=at, seen=str(error)))

    # ------------------------------------------------------------ steps

    def _turn(self, call: Callable[[], Sequence[Output]]) -> None:
        """Do something with the core, and what is due; then see `_go_on`."""
        self._go_on(lambda: [*call(), *self.core.expire(self.process.time())])

    def _go_on(self, call: Callable[[], Sequence[Output]]) -> None:
        """Carry out what comes of a call to the core; then begin a step, or set a timer.

        A core that raises cannot be trusted any more: its process ends, as a real one does.
        """
        try:
            self._carry_out(call())
            if self._step is None and self.process.alive:
                self._begin(self.process.time())
        except Exception as error:
            self._breach(defect(self.spec.name, self.process.schedule.now, error))
            self.process.kill()

    def _begin(self, now: float) -> None:
        self._step = self.core.begin(now)
        if self._step is not None:
            self.process.after(self._step.duration_s or 0.0, self._stepped, self._step)
            return
        due = self.core.next_deadline()
        if due is not None and due != self._wake_at:
            self._wake_at = due
            self.process.alarm(due, self._woken, due)

    def _woken(self, due: float) -> None:
        if self._wake_at == due:
            self._wake_at = None
            if self._step is None:
                self._turn(tuple)

    def _stepped(self, step: Step) -> None:
        if step is not self._step:
            return  # it was cut short
        self._step = None
        self._cancelled.clear()
        self._go_on(lambda: self.core.finish(step, self.process.time()))

    def _cancel(self, seq: SeqId) -> None:
        self.core.abandoned(seq.request, seq.epoch)
        if self._step is not None:
            self._cancelled.add(seq)
            if self._cancelled.issuperset(self._step.seqs):
                self._stepped(self._step)

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        lines: dict[str, list[UpMessage]] = {}
        now = self.process.time()
        for output in outputs:
            if isinstance(output, Up):
                gateway = output.gateway
                for to in self._streams if gateway is None else (gateway,):
                    lines.setdefault(to, []).append(output.message)
                if gateway is not None:
                    self._recent.note(gateway, output.message, now)
            elif isinstance(output, OpenStream):
                self.kv.open(output)
            elif isinstance(output, CloseStream):
                self.kv.close(output.stream)
            elif isinstance(output, DropImport):
                self.kv.drop(output.stream)
            elif isinstance(output, LoadBlocks):
                self.storage.load(output)
            elif isinstance(output, SaveBlocks):
                self.storage.save(output)
        self.kv.refresh()
        for gateway, messages in lines.items():
            self._say(gateway, messages)

    # ------------------------------------------------------------ token streams

    def _beat(self) -> None:
        now = self.process.time()
        self._recent.forget_old(now)
        load = self.core.load()
        if self.spec.warm and load.step_s is None:
            load = replace(load, step_s=self.spec.step_s)
        taken = self.core.taken()
        for gateway, (connection, hear) in list(self._streams.items()):
            connection.send(self.process, hear, connection, (told_to(gateway, load, taken),))
        self.process.after(HEARTBEAT_S, self._beat)

    def _say(self, gateway: str, messages: Sequence[UpMessage]) -> None:
        """One line up a token stream, with the accidents that happen to it."""
        stream = self._streams.get(gateway)
        if stream is None:
            return
        connection, hear = stream
        accidents = self._network.accidents
        if not accidents.any and self._network.drop is None:
            connection.send(self.process, hear, connection, packed(messages))
            return
        for message in messages:
            lost = self._network.loses(self.spec.name, message)
            if lost and isinstance(message, TokenRun):
                continue
            if lost:
                # Nobody asks for an answer again: only a broken stream makes a worker repeat it.
                connection.reset("an accident on the way")
                return
            for _ in range(1 + self._network.hits(accidents.repeated)):
                late = self._network.random.random() * accidents.delay_s
                self.process.after(
                    late, connection.send, self.process, hear, connection, packed((message,))
                )

    # ------------------------------------------------------------ memory

    def fill(self, share: float) -> SeqId | None:
        """Something else takes this share of the pool's free tokens; None: there are none."""
        tokens = int(self.engine.kv_free_tokens() * share)
        if tokens == 0:
            return None
        self._filled += 1
        other = SeqId("memory", self._filled)
        spec = SequenceSpec(tokens=(3,), prompt_len=1, reserve=tokens, sampling=Sampling())
        self.engine.open(other, spec, reuse=False)
        return other

    def give_back(self, other: SeqId) -> None:
        """The memory that `fill` took is free again."""
        self.engine.close(other)
