"""Keys and checksums: what is another model, layout, salt or text is another block."""

import subprocess
import sys
from dataclasses import replace

import pytest

from workers.engines.simulated.model import SimulatedModel
from workers.tiers.blocks import LAYOUT, BlockForm, checksum

FINGERPRINT = SimulatedModel().fingerprint
TOKENS = tuple(range(40))


def keys(salt: str = "", tokens: tuple[int, ...] = TOKENS, **changes: object) -> list[bytes]:
    return BlockForm.of(replace(FINGERPRINT, **changes)).keys(tokens, salt)


def test_whole_blocks_only_have_keys() -> None:
    assert len(keys()) == 2
    assert keys(tokens=TOKENS[:15]) == []
    assert keys(tokens=TOKENS[:31]) == keys()[:1]


@pytest.mark.parametrize(
    "changes",
    [
        {"tensors": "others"},
        {"tokenizer": "another"},
        {"kv_dtype": "float16"},
        {"layers": 3},
        {"kv_heads": 2},
        {"head_size": 16},
        {"rope": "another"},
        {"windows": (None, 64)},
    ],
)
def test_another_model_shares_no_key(changes: dict[str, object]) -> None:
    assert not set(keys(**changes)) & set(keys())


def test_another_layout_shares_no_key() -> None:
    """A change of how bytes lie must not be read as if nothing had changed."""
    other = BlockForm.of(FINGERPRINT, LAYOUT.replace("1:", "2:"))
    assert not set(other.keys(TOKENS, "")) & set(keys())


def test_another_salt_and_another_beginning_share_no_key() -> None:
    assert not set(keys("one")) & set(keys("another"))
    assert not set(keys(tokens=(99, *TOKENS[1:]))) & set(keys())
    assert keys(tokens=(*TOKENS[:20], 99, *TOKENS[21:]))[0] == keys()[0]


def test_another_process_makes_the_same_keys() -> None:
    """Python's own hash differs from process to process."""
    program = (
        "from workers.engines.simulated.model import SimulatedModel\n"
        "from workers.tiers.blocks import BlockForm\n"
        "form = BlockForm.of(SimulatedModel().fingerprint)\n"
        "print(b''.join(form.keys(range(40), 'salt')).hex())\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == b"".join(keys("salt")).hex()


def test_a_block_is_as_large_as_its_tokens() -> None:
    model = SimulatedModel(layers=30, kv_heads=3, head_size=64)
    assert BlockForm.of(model.fingerprint).nbytes == 16 * 23040


def test_the_checksum_tells_bytes_and_keys_apart() -> None:
    one, other = keys()
    data = bytes(range(200))
    assert checksum(one, data) == checksum(one, memoryview(data))
    assert checksum(one, data) != checksum(other, data)
    assert checksum(one, data) != checksum(one, data[:50] + b"\xff" + data[51:])
