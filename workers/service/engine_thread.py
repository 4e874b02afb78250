"""The one thread that touches a worker's core and its engine."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TypeVar

from workers.api.messages import Load
from workers.engines.base import Engine, SeqId, Step
from workers.outputs import Output
from workers.sharing import Taken
from workers.worker import Worker

T = TypeVar("T")

# What is done with the core between two steps; the outputs are delivered together.
Call = Callable[[Worker, float], Sequence[Output]]
# Gets the outputs of one turn or step, in the engine's thread.
Deliver = Callable[[Sequence[Output]], None]

LOAD_EVERY_S = 0.25

log = logging.getLogger(__name__)


class EngineThread:
    """Runs steps while there is work, calls in between, and sleeps otherwise.

    `core` is held whenever the worker's core is used; while a step is computed it is free, so
    that what needs no engine is answered at once (`look`).

    An exception in here means the engine's state cannot be trusted any more: the thread ends,
    `failure` says why, and the server ends the process.
    """

    def __init__(
        self,
        worker: Worker,
        engine: Engine,
        deliver: Deliver,
        on_failure: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._engine = engine
        self._deliver = deliver
        self._on_failure = on_failure
        self._calls: deque[Call] = deque()
        self._wake = threading.Condition()
        self._core = threading.Lock()
        self._stopping = False
        self._roused = False
        self._cancelled: set[SeqId] = set()
        self._running: frozenset[SeqId] = frozenset()
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.load: Load = worker.load()
        self.taken: dict[str, Taken] = worker.taken()
        self._load_at = monotonic()
        self.failure: str | None = None
        engine.on_lost = self._wake_up

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its running step, and wait for it, at most five seconds."""
        self._stopping = True
        self._wake_up()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def healthy(self, stall_s: float) -> bool:
        """Alive, and not inside one step or call for longer than `stall_s`."""
        busy_since = self._busy_since
        stalled = busy_since is not None and monotonic() - busy_since > stall_s
        return self._thread.is_alive() and not stalled

    def submit(self, call: Call) -> None:
        """Have `call` done before the next step, in the order of submission. Any thread."""
        with self._wake:
            self._calls.append(call)
            self._wake.notify()

    def _wake_up(self) -> None:
        with self._wake:
            self._roused = True
            self._wake.notify()

    def look(self, call: Callable[[Worker, float], T]) -> T:
        """What `call` returns or raises, at once; it may not touch the engine. Any thread."""
        with self._core:
            return call(self._worker, monotonic())

    async def ask(self, call: Callable[[Worker, float], T]) -> T:
        """What `call` returns or raises in the engine's thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def asked(worker: Worker, now: float) -> Sequence[Output]:
            try:
                value = call(worker, now)
            except Exception as error:  # it belongs to whoever asked
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, value, None)
            return ()

        self.submit(asked)
        return await answer

    def cancel(self, seq: SeqId) -> None:
        """Stop computing `seq` at once, inside a step too; its `stop` is still to be handled."""
        self._worker.abandoned(seq.request, seq.epoch)
        with self._wake:
            if seq in self._running:
                self._cancelled.add(seq)
                self._wake.notify()

    # ------------------------------------------------------------ the thread itself

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("engine thread failed")
            self._on_failure()

    def _turn(self) -> None:
        self._busy_since = monotonic()
        with self._core:
            called = self._do_calls()
            step = self._worker.begin(monotonic())
        if called:
            self._deliver(called)
        if step is not None:
            self._step(step)
            self._refresh_load(LOAD_EVERY_S)
            return
        self._busy_since = None
        self._refresh_load(0.0)
        self._sleep()

    def _do_calls(self) -> list[Output]:
        now = monotonic()
        outputs: list[Output] = []
        for _ in range(len(self._calls)):
            outputs.extend(self._calls.popleft()(self._worker, now))
        outputs.extend(self._worker.expire(now))
        return outputs

    def _step(self, step: Step) -> None:
        if step.duration_s is not None:
            self._let_pass(step)
        result = self._engine.finish(step)
        with self._core:
            outputs = self._worker.complete(step, result, monotonic())
        self._deliver(outputs)

    def _let_pass(self, step: Step) -> None:
        """Modelled time; it ends early when nobody is left who wants the step."""
        end = monotonic() + (step.duration_s or 0.0)
        with self._wake:
            self._running = frozenset(step.seqs)
            while not self._stopping and not self._running <= self._cancelled:
                left = end - monotonic()
                if left <= 0:
                    break
                self._busy_since = monotonic()
                self._wake.wait(left)
            self._running = frozenset()
            self._cancelled.clear()

    def _sleep(self) -> None:
        with self._wake:
            if self._calls or self._roused:
                self._roused = False
                return
            with self._core:
                deadline = self._worker.next_deadline()
            self._wake.wait(None if deadline is None else max(0.0, deadline - monotonic()))

    def _refresh_load(self, after_s: float) -> None:
        now = monotonic()
        if now - self._load_at >= after_s:
            with self._core:
                self.load, self.taken = self._worker.load(), self._worker.taken()
            self._load_at = now
