"""What every test may use."""

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A shell ignores Ctrl-C for what it runs in the background, and so would all that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT
