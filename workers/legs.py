"""One leg at its worker: the law it knows, its own history, its pause. No engine, no time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from transport.base import StreamId
from workers.api.history import EMPTY_HISTORY, extend_history
from workers.api.messages import Feed, Pause, Resume, Role, SendKV, Start, TokenRun
from workers.engines.base import Sample, SeqId, SequenceSpec

_T = TypeVar("_T")


@dataclass(slots=True)
class Leg:
    """A leg's own history is `own`: law tokens it took over and tokens it sampled.

    Invariants: `hist[i]` is the history hash of own[:i]; own and law agree as far as both go,
    and own is at least as long as the law (of a prefill leg own is law_ids and its one sample).
    The engine has the first `applied` tokens of own; the rest waits for KV or for room.
    """

    start: Start
    seq: SeqId
    reserved: int
    landed: bool
    have: int = 0  # leading tokens that were here when it started
    applied: int = 0
    cut: int | None = None  # output length to which the engine must still truncate
    goal: int | None = None  # what the engine was told: the sequence length to sample up to
    law: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    hist: list[int] = field(default_factory=lambda: [EMPTY_HISTORY])
    details: dict[int, Sample] = field(default_factory=dict)  # by index, where asked for
    switch_seq: int | None = None  # of the newest pause or resume
    pause: Pause | None = None  # in force; None: none, or resumed
    paused_at: int | None = None  # K, once the pause has taken effect
    held: bool = False  # a prefill that has done its work
    loading: bool = False  # blocks may come from the site's stores
    imports: set[StreamId] = field(default_factory=set)
    exports: dict[int, SendKV] = field(default_factory=dict)  # under way, by target epoch
    failed_exports: dict[int, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, start: Start, seq: SeqId, spec: SequenceSpec) -> "Leg":
        landed = start.role is Role.PREFILL
        leg = cls(start=start, seq=seq, reserved=spec.reserve, landed=landed)
        leg.applied = len(spec.tokens) - spec.prompt_len
        leg.law.extend(start.law_ids)
        leg._extend(start.law_ids)
        return leg

    @property
    def gateway(self) -> str:
        return self.start.gateway

    @property
    def prompt_len(self) -> int:
        return len(self.start.prompt_ids)

    @property
    def import_tokens(self) -> int:
        """Tokens whose KV comes from outside."""
        return self.prompt_len + self.start.cover

    @property
    def decodes_on(self) -> bool:
        """The engine's goal still stands: nothing to tell it after a step."""
        if self.goal is None or self.start.role is Role.PREFILL:
            return False
        return len(self.start.prompt_ids) + len(self.own) < self.goal and not self.ended

    @property
    def takes_slot(self) -> bool:
        return not self.held and self.paused_at is None

    @property
    def ended(self) -> bool:
        """Own history ends in end-of-text, or at the limit: idle until a feed says otherwise."""
        start, length = self.start, len(self.own)
        if length >= start.limit:
            return True
        return length > start.min_tokens and self.own[-1] in start.stop_ids

    def target(self) -> int | None:
        """The output length to decode up to; None: nothing to sample now."""
        start = self.start
        if self.held or self.paused_at is not None or not self.landed:
            return None
        if start.role is Role.PREFILL:
            return max(len(start.law_ids), min(len(start.law_ids) + 1, start.limit))
        if not self.law or self.ended:
            return None
        at = start.limit if self.pause is None or self.pause.at is None else self.pause.at
        at = min(at, start.limit)
        return at if at > len(self.own) else None

    @property
    def export_stop(self) -> int:
        """The first token that no export wants."""
        return max((send.stop for send in self.exports.values()), default=0)

    # ---------------------------------------------------------------- law and history

    def learn(self, feed: Feed) -> int | None:
        """Take a feed in; return the index at which own history was cut, None if it was not.

        A feed that leaves a gap or makes no sense changes nothing; overlap is harmless.
        """
        fed = len(self.law)
        if feed.start > fed or feed.law <= fed or feed.start < 0 or feed.law > self.start.limit:
            return None
        if feed.ids:
            if len(feed.ids) != feed.law - feed.start:
                return None
            new: Sequence[int] = feed.ids[fed - feed.start :]
        elif len(self.own) >= feed.law:
            new = self.own[fed : feed.law]
        else:
            return None
        self.law.extend(new)
        if self.start.role is Role.PREFILL:
            return None
        common = fed
        shorter = min(len(self.own), len(self.law))
        while common < shorter and self.own[common] == self.law[common]:
            common += 1
        cut = common if common < shorter else None
        if cut is not None:
            self._truncate(cut)
        self._extend(self.law[len(self.own) :])
        return cut

    def take(self, sample: Sample) -> TokenRun:
        """Append a token that the engine sampled, and say so."""
        index = len(self.own)
        if self._detailed:
            self.details[index] = sample
        self._extend((sample.token,))
        self.applied = index + 1
        return self._run(index, index + 1)

    def runs(self, start: int) -> list[TokenRun]:
        """Own history from `start` again, never nothing; parts without details come apart."""
        start = max(0, min(start, len(self.own)))
        if not self._detailed or start == len(self.own):
            return [self._run(start, len(self.own))]
        parts = (list(part) for _, part in groupby(range(start, len(self.own)), self._has_detail))
        return [self._run(part[0], part[-1] + 1) for part in parts]

    @property
    def _detailed(self) -> bool:
        return self.start.sampling.logprobs is not None or self.start.sampling.margins

    def _has_detail(self, index: int) -> bool:
        return index in self.details

    def _run(self, start: int, stop: int) -> TokenRun:
        logprobs = margins = None
        if self._detailed and stop > start and self._has_detail(start):
            samples = [self.details[index] for index in range(start, stop)]
            if self.start.sampling.logprobs is not None:
                logprobs = _all_or_none([sample.logprobs for sample in samples])
            if self.start.sampling.margins:
                margins = _all_or_none([sample.margin for sample in samples])
        return TokenRun(
            request=self.seq.request,
            epoch=self.seq.epoch,
            index=start,
            ids=tuple(self.own[start:stop]),
            hist=self.hist[start],
            fed=len(self.law),
            logprobs=logprobs,
            margins=margins,
            cached=min(self.have, self.prompt_len) if self.start.role is Role.PREFILL else 0,
        )

    def _extend(self, ids: Sequence[int]) -> None:
        history = self.hist[-1]
        for token in ids:
            history = extend_history(history, (token,))
            self.own.append(token)
            self.hist.append(history)

    def _truncate(self, length: int) -> None:
        if length < self.applied:
            self.applied = self.cut = length
        del self.own[length:]
        del self.hist[length + 1 :]
        if self.details:
            self.details = {i: s for i, s in self.details.items() if i < length}

    # ---------------------------------------------------------------- pause

    def switch(self, message: Pause | Resume) -> bool:
        """Obey a pause or resume that is newer than the last; False: it is old or repeated."""
        if self.switch_seq is not None and message.seq <= self.switch_seq:
            return False
        self.switch_seq = message.seq
        self.pause = message if isinstance(message, Pause) else None
        self.paused_at = None
        return True

    def settle_pause(self) -> bool:
        """Let a pause take effect when nothing below its index can come now; True: it just did."""
        if self.pause is None or self.paused_at is not None:
            return False
        if self.pause.at is not None and self.target() is not None:
            return False
        self.paused_at = len(self.own)
        return True

    # ---------------------------------------------------------------- exports

    def spoiled_exports(self, length: int, computed: int) -> Iterator[int]:
        """Target epochs that may have been sent KV from sequence position `length` on."""
        for epoch, send in self.exports.items():
            if length < min(computed, send.stop):
                yield epoch


def _all_or_none(values: list[_T | None]) -> tuple[_T, ...] | None:
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else None
