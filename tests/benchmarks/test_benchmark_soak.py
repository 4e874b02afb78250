"""`pdd bench soak`: half a minute of it, and how slopes are fitted."""

import asyncio
import json

import httpx
import pytest

from benchmarks.reliability.soak import GROWING, SAMPLES, Sample, Soak, grown, slopes
from orchestrator.cli.main import run


@pytest.mark.timeout(400)
def test_half_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "soak", "--minutes", "0.5", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["broken"] == []
    assert (told["left"], told["open"]) == (0, 0)
    assert told["outcomes"]["whole"] > 10
    assert told["requests"] == sum(told["outcomes"].values())
    assert len(told["samples"]) == 60


def test_a_gateway_that_does_not_answer_costs_samples_and_not_the_soak() -> None:
    class Silent:
        asked = 0

        async def status(self) -> None:
            self.asked += 1
            raise httpx.ReadTimeout("")

    silent, told = Silent(), list[str]()
    soak = Soak(served=None, secret="", seed=1, tell=told.append)
    asyncio.run(soak.sampled(silent, 0.0))
    assert silent.asked == soak.no_samples == len(told) == SAMPLES
    assert told[0] == "no sample: ReadTimeout of the gateway's /status"


def sample(at: float, requests: int, rss_bytes: int, files: int = 9) -> Sample:
    return Sample(
        at=at,
        requests=requests,
        rss_bytes=rss_bytes,
        files=files,
        threads=4,
        tasks=20,
        workers_rss_bytes=1,
        workers_files=1,
        held=0,
        open=0,
    )


def test_slopes_are_of_what_comes_after_the_first_fifth() -> None:
    warm = [sample(1.0, 10, 1_000_000), sample(19.0, 900, 5_000_000)]
    grown = [sample(20.0 + k, 1000 * (k + 1), 5_000_000 + 700 * k, 9 + 2 * k) for k in range(81)]
    told = slopes([*warm, *grown])
    assert told["rss_bytes"] == pytest.approx(700.0)
    assert told["files"] == pytest.approx(2.0)
    assert told["threads"] == pytest.approx(0.0)


def test_what_grows_is_named_where_there_were_requests_enough() -> None:
    def soak(requests: int, rss: int, files: int) -> list[Sample]:
        return [sample(k, requests * k // 80, rss * k, 9 + files * k) for k in range(1, 81)]

    assert grown(soak(20_000, 1000, 0)) == []
    assert grown(soak(20_000, 900_000, 1)) == ["rss_bytes grow", "files grow"]
    assert grown(soak(900, 900_000, 1)) == [], "too few to tell"


@pytest.mark.parametrize("samples", [[], [sample(1.0, 5, 5)] * 9])
def test_too_few_samples_tell_nothing(samples: list[Sample]) -> None:
    assert slopes(samples) == dict.fromkeys(GROWING)
