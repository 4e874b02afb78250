"""The engine's thread when what computes for the engine is gone."""

import threading
from typing import Any

from workers.costs import MeasuredCosts
from workers.engines.base import EngineLost
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import SimulatedModel
from workers.service.engine_thread import EngineThread
from workers.worker import Worker


class Lost(SimulatedEngine):
    """Says that it is lost, once it is."""

    lost = False

    def begin(self) -> Any:
        if self.lost:
            raise EngineLost("vLLM has ended: killed")
        return super().begin()


def test_a_lost_engine_ends_the_thread_at_once_while_nothing_is_asked_of_it() -> None:
    costs = MeasuredCosts(prefill_tokens_per_s=1000.0, decode_step_s=0.01)
    engine = Lost(SimulatedModel(), costs, kv_total_tokens=256)
    worker = Worker("w", engine, slots=2, hold_s=10.0, lease_s=10.0)
    failed = threading.Event()
    thread = EngineThread(worker, engine, lambda outputs: None, failed.set)
    thread.start()
    asked = threading.Event()
    thread.submit(lambda worker, now: asked.set() or ())
    assert asked.wait(10)
    assert thread.healthy(stall_s=30.0)
    engine.lost = True
    assert engine.on_lost is not None
    engine.on_lost()
    assert failed.wait(10)
    assert thread.failure == "EngineLost: vLLM has ended: killed"
    thread.stop()
    assert not thread.healthy(stall_s=30.0)
