"""A compiled core gives what the interpreted one gives, byte for byte.

Where the checkout has been built (`make compiled`), all of it is compared; else a few modules are
built in a copy, as all of them take minutes.
"""

import shutil
from pathlib import Path

import pytest

from compiled.build import build, closure
from compiled.finder import BUILT, ROOT, VARIABLE, is_compiled
from compiled.rooms import MODULES
from tests.compiled.child import child

FEW = (
    "workers.api.history",
    "workers.api.messages",
    "orchestrator.replay.caches",
    "orchestrator.replay.lines.shares",
)
# A replay with handovers, recoveries and prefix caches; then a record, as others see it.
LIVED = """
import pickle
import sys
from dataclasses import FrozenInstanceError, replace

import orjson

from benchmarks import replay
from compiled.finder import is_compiled
from orchestrator.replay.driver import Replay
from orchestrator.replay.faults import LineFault, WorkersLost
from workers.api.messages import Role, Sampling, Start
from workers.api.wire import decode, encode

asked = replace(replay.GENERATED, count=60)
faults = (
    WorkersLost(name="hami/relay/0", at=2.0, until=4.0),
    LineFault(between=("hami", "shenzhen"), at=3.0, until=4.0, factor=0.0),
)
setup = replay.setup(asked.block_tokens)
lived = Replay(replace(setup, faults=faults, timelines=4, use_every_s=1.0))
lived.run(replay.asks(asked))
for outcome in lived.outcomes.values():
    print(outcome)
print(lived.events, lived.ended_at, lived.sent_bytes, lived.uses)
print(sorted(lived.machine.ctx.counts.items()))

start = Start(request="r", epoch=1, gateway="g", role=Role.MAIN, prompt_ids=(1, 2), limit=9,
              sampling=Sampling(temperature=0.5), reserve=3)
assert decode(orjson.loads(orjson.dumps(encode(start))), (Start,)) == start
assert pickle.loads(pickle.dumps(start)) == start
assert replace(start, limit=8) != start and hash(replace(start, limit=9)) == hash(start)
print(start, orjson.dumps(start), type(start).__module__)
try:
    start.limit = 3
except FrozenInstanceError as error:
    print(error)
print(is_compiled(), file=sys.stderr)
"""


def live(checkout: Path, **environment: str) -> tuple[str, str]:
    """What a process of its own prints, and whether it was compiled."""
    told, compiled = child(LIVED, checkout, **environment)
    return told, compiled.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This one if it is built; else a copy of it with few modules built."""
    if is_compiled():
        return ROOT
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("compiled", "orchestrator", "workers", "transport", "benchmarks", "configs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build(copy, copy / BUILT.relative_to(ROOT), FEW)
    return copy


@pytest.mark.timeout(600)
def test_a_replay_is_the_same_to_the_last_byte(checkout: Path) -> None:
    compiled, how = live(checkout)
    assert how == "True"
    interpreted, how = live(checkout, **{VARIABLE: "1"})
    assert how == "False"
    assert compiled == interpreted
    assert compiled.count("Outcome(") == 60


def test_a_build_depends_on_all_that_is_imported() -> None:
    found = closure(ROOT, MODULES)
    assert {module.replace(".", "/") + ".py" for module in MODULES} <= found
    assert {
        "compiled/expand.py",
        "compiled/records.py",
        "orchestrator/__init__.py",
        "orchestrator/replay/prompt.py",  # is imported, and left as it is
        "transport/codecs/choose.py",
        "workers/api/record.py",
    } <= found
    assert not any(name.startswith(("orchestrator/live", "benchmarks")) for name in found)
