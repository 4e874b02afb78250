"""Actions: what the driver must do. Imperative, frozen; each is carried out outside the core."""

from enum import StrEnum

from orchestrator.state.events import HandoffMode, Route
from workers.api.messages import DownMessage, TokenLogprobs
from workers.api.record import record


class FinishReason(StrEnum):
    """Why a request ended well, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class Failure(StrEnum):
    """Why a request ended badly; the HTTP border turns each into a status."""

    OVERLOADED = "overloaded"  # 503 with Retry-After: no capacity, the queue is full
    UNAVAILABLE = "unavailable"  # 503 with Retry-After: no live worker can serve it
    TOO_LONG = "too_long"  # 400: prompt and output do not fit any worker
    GRAMMAR = "grammar"  # 400: the engines cannot keep to the answer's grammar
    TIMED_OUT = "timed_out"  # 504: a deadline passed and nothing was left to try
    INTERNAL = "internal"  # 500


@record
class Send:
    """Deliver a message to a worker, at least once until its leg ends or the worker is lost."""

    worker: str
    message: DownMessage


@record
class Emit:
    """Give the client the tokens at output index `start` and on."""

    request: str
    start: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    margins: tuple[float, ...] | None = None


@record
class Summary:
    """A request's account, for the client's extension field and for metrics.

    Durations in seconds on the gateway's clock; None: the phase did not happen. `relay_tokens`
    counts accepted tokens that a relay leg sampled; `handoff_index` is main's first token;
    `cached_tokens` of the prompt were not computed, the prefill's worker had them.
    """

    route: Route
    handoff: HandoffMode | None
    handoff_index: int | None
    relay_tokens: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float | None  # prefill leg started to token 0 accepted
    kv_transfer_s: float | None  # token 0 accepted to KV landed at main
    relay_s: float | None  # relay's first to last accepted token
    handoff_gap_s: float | None  # longest wait between releases near the handoff, minus the
    # slower engine's step; never below 0
    kv_bytes_raw: int
    kv_bytes_wire: int
    recoveries: int  # legs that were lost or failed and were replaced
    sites: dict[str, str]  # role -> worker that served it last


@record
class Finish:
    """Every token was emitted; close the client's stream. `stop` is the matched stop string."""

    request: str
    reason: FinishReason
    stop: str | None
    summary: Summary


@record
class Fail:
    """Tell the client why it ends here: a status before the first byte, an error frame after."""

    request: str
    failure: Failure
    message: str
    retry_after_s: float | None = None


Action = Send | Emit | Finish | Fail
