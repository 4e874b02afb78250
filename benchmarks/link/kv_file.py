"""Real KV of the default model into a file. A process of its own: torch stays in it."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.codec import load


def main(path: Path) -> None:
    """[layers, 2, tokens, heads, size] uint16: the bits of three texts, one after the other."""
    _, readings = load()
    np.save(path, np.concatenate([reading.kv for reading in readings], axis=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
