"""What a modelled worker answers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.state.law import Law
from tests.orchestrator.replay.rig import COSTS, Bench, spec, start
from workers.api.messages import Feed, Landed, Pause, Refused, Resync, Role, SendKV, Stop, TokenRun

FLAT = replace(COSTS, context_s=0.0, sequence_s=0.0)


def send_kv(to: str = "b/main/0") -> SendKV:
    return SendKV(request="r", epoch=1, to_worker=to, to_epoch=2, start=0, stop=100)


def test_a_prefill_samples_once_and_holds_its_kv() -> None:
    bench = Bench()
    bench.at(0.0, start(Role.PREFILL, prompt_ids=tuple(range(1000)), reserve=1000), send_kv())
    bench.run()
    assert bench.runs() == [(pytest.approx(0.1), 0, 1)]
    assert bench.moved == [(pytest.approx(0.1), send_kv())]
    assert bench.worker.legs
    assert bench.worker.slots_used == 0


def test_prefills_are_computed_as_they_come_and_share_a_chunk() -> None:
    bench = Bench()
    for n, tokens in enumerate((1000, 100, 500)):
        bench.at(0.0, start(Role.PREFILL, f"r{n}", prompt_ids=tuple(range(tokens)), reserve=tokens))
    bench.run()
    assert bench.runs("r0") == [(pytest.approx(0.1024), 0, 1)]  # 512, then 488 with 24 of the next
    assert bench.runs("r1") == [(pytest.approx(0.1536), 0, 1)]
    assert bench.runs("r2") == [(pytest.approx(0.16), 0, 1)]


def test_decoding_goes_on_beside_a_prefill() -> None:
    bench = Bench(spec=spec(costs=FLAT))
    bench.decode(0.0, start())
    bench.at(0.05, start(Role.PREFILL, "p", prompt_ids=tuple(range(1200)), reserve=1200))
    bench.run()
    # From 0.06 on two steps of 512 prompt tokens and one of 176 take so much longer.
    assert bench.runs("p") == [(pytest.approx(0.06 + 3 * 0.02 + 0.12), 0, 1)]
    assert bench.runs("r")[-1] == (pytest.approx(49 * 0.02 + 0.12), 2, 50)


def test_what_does_not_fit_is_refused() -> None:
    bench = Bench(spec=replace(spec(), kv_tokens=320, slots=2))
    bench.at(0.0, start(request="a", reserve=200), start(request="b", reserve=150))
    bench.at(1.0, Stop(request="a", epoch=1), start(request="c", reserve=150))
    bench.at(2.0, start(request="d", reserve=150))
    bench.run()
    refused = [
        (at, m.request, m.reason) for at, m in bench.heard(Refused) if isinstance(m, Refused)
    ]
    assert refused == [
        (0.0, "b", "160 tokens of KV wanted, 112 are free"),
    ]
    bench.at(3.0, start(request="e", reserve=1))
    bench.run(5000.0)
    assert "slots" in bench.said[-1][1].reason  # type: ignore[union-attr]


def test_an_import_lands_before_or_after_its_start() -> None:
    bench = Bench()
    bench.schedule.at(0.5, bench.worker.land, ("r", 1))
    bench.at(1.0, start())
    bench.at(2.0, start(request="s"))
    bench.schedule.at(3.0, bench.worker.land, ("s", 1))
    bench.run()
    assert [(at, m.request) for at, m in bench.heard(Landed)] == [(1.0, "r"), (3.0, "s")]
    assert not bench.heard(TokenRun)  # nobody fed it the law


def test_main_extends_what_it_is_fed_in_one_pass() -> None:
    bench = Bench(spec=spec(costs=FLAT))
    bench.decode(0.0, start(limit=300, reserve=400), law=40)
    bench.run()
    runs = bench.runs()
    assert runs[0] == (pytest.approx(40 / 10_000), 40, 41)
    assert runs[-1][2] == 300
    assert bench.said[1][1].fed == 40  # type: ignore[union-attr]


def test_a_feed_that_overtakes_it_in_mid_run() -> None:
    bench = Bench(spec=spec(costs=FLAT))
    bench.decode(0.0, start(limit=300, reserve=400))
    bench.at(0.195, Feed(request="r", epoch=1, law=100, start=1, ids=tuple(range(4, 103))))
    bench.at(0.6, Feed(request="r", epoch=1, law=102, start=100, ids=(103, 104)))
    bench.run()
    runs = bench.runs()
    # At 0.2 it has tokens up to 11; 89 of law and its own last one make a chunk of 90.
    assert runs[:2] == [(pytest.approx(0.02), 1, 2), (pytest.approx(0.209), 100, 101)]
    assert runs[-1] == (pytest.approx(0.209 + 199 * 0.02), 101, 300)


def test_every_run_tells_the_same_story() -> None:
    bench = Bench(report_s=0.5)
    bench.decode(0.0, start(Role.RELAY, limit=300, reserve=400))
    bench.at(1.0, Resync(request="r", epoch=1, start=10))
    bench.at(2.0, Pause(request="r", epoch=1, seq=1))
    bench.run()
    law = Law()
    law.extend((3,), None, None)
    for _, message in bench.heard(TokenRun):
        assert isinstance(message, TokenRun)
        assert law.agrees(message.index, message.hist, message.ids)
        law.extend(message.ids[len(law) - message.index :], None, None)
    assert any(index == 10 for _, index, _ in bench.runs())


def test_a_relay_is_never_silent_for_long() -> None:
    bench = Bench(report_s=0.5)
    for n in range(8):
        leg = start(Role.RELAY, request=f"r{n}", limit=200 + 40 * n, reserve=900)
        bench.decode(0.1 * n, leg)
    bench.run()
    for n in range(8):
        times = [at for at, _, _ in bench.runs(f"r{n}")]
        assert max(b - a for a, b in pairwise(times)) < 1.0
        assert len(times) < 30


def test_main_says_its_first_token_and_then_all_of_them() -> None:
    bench = Bench(report_s=0.5)
    bench.decode(0.0, start(limit=300, reserve=400))
    bench.run()
    assert [run[1:] for run in bench.runs()] == [(1, 2), (2, 300)]


def test_what_was_decoded_before_a_death_is_known() -> None:
    bench = Bench(spec=spec(costs=FLAT))
    bench.decode(0.0, start(limit=300, reserve=400))
    bench.schedule.at(1.01, bench.worker.die)
    bench.run()
    assert bench.runs() == [(pytest.approx(0.02), 1, 2), (pytest.approx(1.01), 2, 51)]


def test_it_stops_at_its_end_of_text() -> None:
    bench = Bench()
    bench.decode(0.0, start(stop_ids=(3 + 20,)))
    bench.run()
    assert bench.runs()[-1][2] == 21


def test_memory_that_runs_out_is_waited_for() -> None:
    bench = Bench(spec=replace(spec(costs=FLAT), kv_tokens=320), report_s=50.0)
    bench.decode(0.0, start(limit=80, reserve=112))  # it will want 180
    bench.at(0.0, start(request="other", reserve=208))
    bench.at(5.0, Stop(request="other", epoch=1))
    bench.run()
    assert [run for run in bench.runs() if run[0] < 5.0][-1][2] == 12
    assert bench.runs()[-1] == (pytest.approx(5.0 + 68 * 0.02), 12, 80)
