"""One leg at a modelled worker."""

from dataclasses import dataclass, field

from orchestrator.replay import tokens
from orchestrator.replay.lines.ramp import Chunk, Ramp, layerwise
from workers.api.messages import PREFILL, SendKV, Start, TokenRun, token_count

LegKey = tuple[str, int]  # request and epoch


@dataclass(slots=True, eq=False)
class ModelLeg:
    """A leg's memory, law and history, as far as they matter: lengths, no tokens.

    `own`: output tokens it has, law and sampled, while it does not decode; while it does, they are
    `offset` + its batch's clock. `todo`: tokens of prompt and law that it computes before it
    decodes. `goal`: the output length at which it stops decoding.
    """

    start: Start
    key: LegKey
    reserved: int = field(init=False)  # tokens of KV memory
    prompt: int = field(init=False)
    end: int = field(init=False)  # the output length at which it is complete
    landed: bool = field(init=False)
    law: int = field(init=False)
    own: int = field(init=False)
    said: int = field(init=False)  # output tokens told to the gateway
    computed: int = field(init=False)  # tokens with KV or without, while it does not decode
    gone: int = 0  # of these, tokens whose KV is not kept
    thins_at: int | None = None  # on its batch's clock, when the next are to go
    todo: int = 0
    began_at: float | None = None  # when its first chunk was begun
    offset: int = 0
    leaves_at: int | None = None  # on its batch's clock; None: it does not decode
    closed: bool = False
    held: bool = False  # a prefill that has given its token
    seq: int = 0  # of the newest pause or resume
    pause_at: int | None = None  # no index from here on; None: not paused
    paused: bool = False  # the pause has taken effect
    fresh: bool = True  # it has sampled nothing yet
    racing: bool = False  # it says every token as it comes
    reports: bool = False  # it waits for its turn to speak after a silence
    blocks: tuple[int, ...] = ()  # that it holds of the worker's prefix cache
    hit: int = 0  # prompt tokens that were in it at the start, or came from stores
    from_memory: int = 0  # prompt tokens that came from stores' memory,
    from_files: int = 0  # and from their files
    loading: bool = False  # a prefill that waits for them
    loaded_at: float = 0.0  # when they are here
    chunks: list[Chunk] = field(default_factory=list)  # that it has computed
    exports: list[tuple[float, SendKV]] = field(default_factory=list)  # that wait, and since when

    def __post_init__(self) -> None:
        start = self.start
        self.prompt = token_count(start.prompt_ids)
        self.law = self.own = self.said = len(start.law_ids)
        prefill = start.role is PREFILL
        self.landed = prefill
        self.computed = 0 if prefill else self.prompt + start.cover
        if prefill:
            self.end = min(self.own + 1, start.limit)
        else:
            self.end = _end(start) if start.stop_ids else start.limit

    @property
    def goal(self) -> int:
        goal = min(self.end, self.reserved - self.prompt + self.gone)
        return goal if self.pause_at is None else min(goal, max(self.pause_at, self.own))

    def ramp(self, first: int, stop: int, *, layers: int, token_bytes: int) -> Ramp:
        """How its KV of tokens [first, stop) came, if it prefilled them; else it came at once."""
        if self.start.role is not PREFILL or self.began_at is None:
            return ()
        return layerwise(
            self.began_at,
            self.chunks,
            layers,
            hit=self.hit,
            first=first,
            stop=stop,
            token_bytes=token_bytes,
        )

    def run(self, begin: int, end: int) -> TokenRun:
        """Its tokens at output indices [begin, end)."""
        request, epoch = self.key
        return TokenRun(
            request=request,
            epoch=epoch,
            index=begin,
            ids=tokens.ids(begin, end),
            hist=tokens.history(begin),
            fed=self.law,
        )


def _end(start: Start) -> int:
    """The output length that a leg stops at by itself: its limit, or its end-of-text."""
    end = start.limit
    for token in start.stop_ids:
        index = tokens.index_of(token)
        if start.min_tokens <= index < end:
            end = index + 1
    return end
