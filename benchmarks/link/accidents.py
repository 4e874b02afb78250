"""A transfer that something happens to: does it arrive, and how much of it was sent twice?"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.link.kv import TOKEN_BYTES
from benchmarks.link.line import CONNECTIONS, opened
from benchmarks.link.processes import Talker
from transport.lab.lab import Lab

GBPS = 1.0
SIZE_MIB = 256
LARGE_MIB = 1024
CODEC = "raw"
CUT_S = 5.0
HARM_AFTER_S = 1.0
DAMAGE_EVERY = 1000
AS_SENT = 256  # tokens of a slice, as a worker sends them: more frames, more of them damaged


def run(path: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A cut line, a killed connection, damaged frames; last a large one, for its memory."""
    most = (LARGE_MIB << 20) // TOKEN_BYTES + 1
    rows = []
    with (
        opened(GBPS, 0.0) as lab,
        Talker(lab.far, "benchmarks.link.receiving", lab.far.address, most) as far,
    ):
        address = f"{lab.far.address}:{far.hear('port')['port']}"
        arguments = (address, path, most, CONNECTIONS)
        with Talker(lab.near, "benchmarks.link.sending", *arguments) as near:
            near.hear("ready")
            _harmed(near, far, "warm", SIZE_MIB)
            for what, size, harm, damage in (
                ("nothing", SIZE_MIB, None, None),
                (f"the line cut for {CUT_S:g} s", SIZE_MIB, lambda: _cut(lab), None),
                (f"one connection of {CONNECTIONS} killed", SIZE_MIB, lambda: _kill(far), None),
                (f"one frame in {DAMAGE_EVERY} damaged", SIZE_MIB, None, DAMAGE_EVERY),
                ("nothing", LARGE_MIB, None, None),
            ):
                row = _harmed(near, far, what, size, harm, damage)
                rows.append(row)
                tell(
                    f"{what}, {size} MiB: {row['seconds']:.2f} s, {row['resent_share']:.2%} sent "
                    f"twice, {row['sender_grown_mb']:.0f} and {row['receiver_grown_mb']:.0f} MB"
                )
    return rows


def _harmed(
    near: Talker,
    far: Talker,
    what: str,
    size: int,
    harm: Callable[[], None] | None = None,
    damage: int | None = None,
) -> dict[str, Any]:
    tokens = (size << 20) // TOKEN_BYTES
    request = f"{what} {size}"
    far.say(begin=request, damage_every=damage)
    slice_tokens = tokens if damage is None else AS_SENT
    near.say(request=request, tokens=tokens, codec=CODEC, slice_tokens=slice_tokens)
    if harm is not None:
        time.sleep(HARM_AFTER_S)
        harm()
    sent, done = near.hear("began"), far.hear("done_at")
    far.say(asked=request)
    seen = far.hear("read_at")
    return {
        "what": what,
        "size_mib": size,
        "seconds": done["done_at"] - sent["began"],
        "sent_bytes": sent["sent_bytes"],
        "resent_bytes": sent["resent_bytes"],
        "resent_share": sent["resent_bytes"] / sent["sent_bytes"],
        "damaged_frames": seen["damaged"],
        "sender_grown_mb": sent["grown_bytes"] / 1e6,
        "receiver_grown_mb": seen["grown_bytes"] / 1e6,
    }


def _cut(lab: Lab) -> None:
    lab.cut()
    time.sleep(CUT_S)
    lab.restore()


def _kill(far: Talker) -> None:
    far.say(kill=True)
