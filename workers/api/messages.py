"""Messages between a gateway and a worker, as PROTOCOL names them.

Every message carries `request` (unique across gateways) and `epoch` (one leg of the request), but
for those that speak of a whole worker or of a whole step.
Output indices count from 0; all ranges are half-open.
"""

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from typing import Final

from workers.api.record import record


class Role(StrEnum):
    """What a leg does. The role belongs to the leg; a worker's roles say where legs may go."""

    PREFILL = "prefill"
    RELAY = "relay"
    MAIN = "main"


# Names of their own for where legs are dealt with by the million: looking a member up in its enum
# takes longer than the comparison that it is wanted for.
PREFILL: Final = Role.PREFILL
RELAY: Final = Role.RELAY
MAIN: Final = Role.MAIN

RANK = {PREFILL: 0, RELAY: 1, MAIN: 2}


def token_count(ids: Sequence[int]) -> int:
    """How many ids a prompt has. By its own word: a replay's prompts are tuples without ids, and
    compiled code does not ask what it takes for a tuple.
    """
    return len(ids)


@record
class Sampling:
    """How tokens are drawn: Gumbel-max with a counter per output index, so any leg draws alike.

    `logit_bias` holds (token id, what is added to its logit). `grammar`, in llguidance's words,
    says which tokens may come at all; None: any.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    seed: int = 0
    logprobs: int | None = None  # alternatives wanted beside each token's own; None: no logprobs
    margins: bool = False  # report the distance of the two best (noisy) logits


@record
class TokenLogprobs:
    """Log-probabilities of one output token and of the best alternatives, natural log."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


# ---------------------------------------------------------------- control, gateway to worker


@record
class Start:
    """Open a leg.

    `law_ids` is the law when the leg starts, `cover` how many of its tokens' KV comes with the
    import (0: the prompt only), `limit` the first index not to produce, `reserve` the tokens of
    KV memory to set aside. A prefill leg imports nothing and samples index len(law_ids), once.
    `tenant`: whose request it is, for what a site's stores may keep of it.
    """

    request: str
    epoch: int
    gateway: str
    role: Role
    prompt_ids: tuple[int, ...]
    law_ids: tuple[int, ...] = ()
    cover: int = 0
    limit: int
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    reserve: int
    cache_salt: str = ""
    tenant: str = "default"


@record
class SendKV:
    """Send the KV of tokens [start, stop) of this leg's sequence to another leg, as it appears.

    `address` is where the target's KV port is seen from this worker; the driver fills it in.
    On the line a transfer of `weight` counts as if it were that many times smaller.
    A target on the same worker shares the blocks and nothing moves.
    """

    request: str
    epoch: int
    to_worker: str
    to_epoch: int
    start: int
    stop: int
    codec: str = "lossless"
    weight: float = 1.0
    address: str | None = None


@record
class Pause:
    """Produce no index >= `at`; None: finish the running step."""

    request: str
    epoch: int
    seq: int
    at: int | None = None


@record
class Resume:
    """Take decoding up again; obeyed only if `seq` is newer than the last pause or resume."""

    request: str
    epoch: int
    seq: int


@record
class Stop:
    """End the leg and free all it holds. Leaves a tombstone."""

    request: str
    epoch: int


# ---------------------------------------------------------------- tokens, gateway to worker


@record
class Feed:
    """The law is now `law` long; `ids` is law[start:], left out for the leg that produced it."""

    request: str
    epoch: int
    law: int
    start: int
    ids: tuple[int, ...] = ()


@record
class Resync:
    """Send your run from `start` again; always answered, with an empty run if there is none."""

    request: str
    epoch: int
    start: int


# ---------------------------------------------------------------- worker to gateway


@record
class TokenRun:
    """Tokens sampled at `index`, `index` + 1, ... after the history `hist`.

    `fed` is how much of the law the worker knows. `margins` holds, per token, the distance of the
    two best logits (with the sampler's noise added when sampling). `cached`: of a prefill leg, how
    many leading tokens of the prompt it found in its worker's cache.
    """

    request: str
    epoch: int
    index: int
    ids: tuple[int, ...]
    hist: int
    fed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    margins: tuple[float, ...] | None = None
    cached: int = 0


@record
class NextTokens:
    """What a decode step gave to many legs, in columns: one for each field of a `TokenRun`.

    Each row is a run of one token with nothing beside it.
    """

    requests: tuple[str, ...]
    epochs: tuple[int, ...]
    indices: tuple[int, ...]
    ids: tuple[int, ...]
    hists: tuple[int, ...]
    feds: tuple[int, ...]


@record
class Landed:
    """The leg's imported KV is complete: the prompt and `covered` law tokens."""

    request: str
    epoch: int
    covered: int


@record
class Paused:
    """The leg has paused; `at` is the first index it did not produce."""

    request: str
    epoch: int
    seq: int
    at: int


class Cause(StrEnum):
    """Why a worker refuses a leg, which says what may be tried instead."""

    BUSY = "busy"  # another worker may take it, or this one later
    SENSELESS = "senseless"  # no worker takes such a leg
    GRAMMAR = "grammar"  # the engines cannot keep to it, or cannot any further


@record
class Refused:
    """The worker cannot take the leg, or cannot go on with it; it holds nothing for it."""

    request: str
    epoch: int
    reason: str
    cause: Cause = Cause.BUSY


@record
class KVFailed:
    """The KV that leg `source` was sending to this leg will not arrive."""

    request: str
    epoch: int
    source: int
    reason: str


@record
class KVStats:
    """What one landed import cost; sent beside `Landed`, for people and metrics only."""

    request: str
    epoch: int
    bytes_raw: int
    bytes_wire: int
    transfer_s: float  # first frame received to last byte decoded, the receiver's own clock


HEARTBEAT_S = 1.0


@record
class LinkLoad:
    """What a worker sees of the link to another site, as a sender of KV; None: not known.

    Bytes are coded ones but for `uncoded_bytes`, raw KV of open streams still to be coded.
    `queue_bytes` were coded and not acknowledged yet, `sent_bytes` were written since the worker
    began, and of those `resent_bytes` not for the first time. `loss` is the share of bytes that
    TCP had to send again.
    """

    site: str
    goodput_bytes_per_s: float | None
    rtt_s: float | None
    loss: float | None
    queue_bytes: int
    uncoded_bytes: int
    sent_bytes: int
    resent_bytes: int


@record
class Load:
    """A worker's own account of itself, sent to every gateway each `HEARTBEAT_S`."""

    worker: str
    running: int  # legs that compute or decode
    prefill_tokens: int  # prompt tokens not yet computed
    kv_free_tokens: int  # tokens that could be reserved now, evictable cache included
    kv_total_tokens: int
    kv_held_tokens: int  # tokens in blocks that some leg references
    step_s: float | None  # seconds per decode step, moving average; None: not yet known
    prefill_tokens_per_s: float | None
    links: tuple[LinkLoad, ...] = ()  # to the sites it has sent KV to
    gateways: int = 1  # that share it
    others_slots: int = 0  # taken by legs of other gateways than the one that is told
    others_tokens: int = 0  # of KV memory, the same
    kv_evicted_tokens: int = 0  # that have died since the worker began
    kv_freed_blocks: int = 0  # that they have given back
    kv_waste: float | None = None  # empty places of legs that lost tokens; None: there are none


ControlMessage = Start | SendKV | Pause | Resume | Stop
DownMessage = ControlMessage | Feed | Resync
UpMessage = TokenRun | NextTokens | Landed | Paused | Refused | KVFailed | KVStats | Load
