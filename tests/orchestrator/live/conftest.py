"""One running service for every test that needs the real model across two sites."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service import Served, serving
from tests.orchestrator.live.live_service import SECRET
from workers.service.config import SECRET_ENV


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`pdd serve` with the laptop topology: SmolLM2, three workers, 25 ms, 10 Mbps."""
    logs = tmp_path_factory.mktemp("logs")
    topology = root / "configs" / "topologies" / "laptop-4000km.yaml"
    with serving(topology, "--logs", str(logs), environment={SECRET_ENV: SECRET}) as service:
        yield service
