"""Rules of the KV transport, each broken once."""

from benchmarks.mutants.mutant import Mutant, broken

T = "transport.stream."


def _m(name: str, module: str, *edits: tuple[str, str], exempt: str | None = None) -> Mutant:
    return broken("transport", name, T + module, *edits, exempt=exempt)


TRANSPORT = (
    _m(
        "what was in flight is not sent again",
        "sender",
        ("        self._queue = deque(self._unacked)\n", ""),
    ),
    _m(
        "a broken connection forgets what is unacknowledged",
        "sender",
        (
            "        self._breaks += 1\n",
            "        self._breaks += 1\n        self._unacked.clear()\n",
        ),
    ),
    _m(
        "a new connection is not offered the stream again",
        "sender",
        (
            "        return [Offering(self.offer)]\n",
            "        return [] if self.have is not None else [Offering(self.offer)]\n",
        ),
    ),
    _m(
        "an offer waits for ever",
        "sender",
        (
            "self._give_up_at: float | None = now + resume_s",
            "self._give_up_at: float | None = None",
        ),
        exempt="the core's own deadline for KV ends it",
    ),
    _m(
        "a stream is done before all is acknowledged",
        "sender",
        (
            "if self._finishing and self.phase is Phase.OPEN and not self._unacked:",
            "if self._finishing and self.phase is Phase.OPEN:",
        ),
    ),
    _m(
        "a refusal is not heard",
        "sender",
        ("        self.fail(frame.reason)\n        return []\n", "        return []\n"),
        exempt="the stream ends with its source leg",
    ),
    _m(
        "a cancelled stream is not told",
        "sender",
        (
            "        return [Cancel(self.offer.stream, reason)] if told else []\n",
            "        return []\n",
        ),
        exempt="the receiver hears of it when its leg is stopped",
    ),
    _m(
        "every piece counts twice",
        "receiver",
        (
            "        incoming.missing -= ranges.add(key.start, key.stop)\n",
            "        incoming.missing -= 2 * ranges.add(key.start, key.stop)\n",
        ),
    ),
    _m(
        "a corrupt piece is stored",
        "framing",
        ("    if zlib.crc32(body) != preamble.body_crc:\n", "    if False:\n"),
    ),
    _m(
        "a corrupt head is read",
        "framing",
        (
            "    if zlib.crc32(data, zlib.crc32(preamble.summed)) != preamble.head_crc:\n",
            "    if False:\n",
        ),
    ),
    _m(
        "a corrupt piece is given up",
        "receiver",
        (
            "        if isinstance(error, CorruptFrame):\n",
            "        if False:\n",
        ),
        exempt="the stream breaks and the machine finds another source: slower, but no promise",
    ),
    _m(
        "a completed stream is not told",
        "receiver",
        (
            "            self._send(incoming.conn, Done(stream))\n        started",
            "            pass\n        started",
        ),
        exempt="the stream ends with its source leg, its KV has landed",
    ),
    _m(
        "a broken stream is not told to its leg",
        "receiver",
        ("            self._sink.broken(stream, reason)\n", "            pass\n"),
        exempt="its source tells the gateway as well",
    ),
    _m(
        "a receiver waits for ever for its sender",
        "receiver",
        (
            "            if incoming.give_up_at is not None and incoming.give_up_at <= now:\n",
            "            if False:\n",
        ),
    ),
    _m(
        "a cancelled stream goes on at the receiver",
        "receiver",
        ("            self._break(frame.stream, frame.reason, tell=False)\n", "            pass\n"),
        exempt="the receiver drops it when its leg is stopped",
    ),
    _m(
        "a stream completes with its last piece missing",
        "receiver",
        (
            "        if incoming.missing > 0:\n            return\n",
            "        if incoming.missing > 16:\n            return\n",
        ),
    ),
    _m(
        "what is there already is forgotten in the answer",
        "receiver",
        (
            "Accept(incoming.offer.stream, incoming.have, self._window, incoming.ranges)",
            "Accept(incoming.offer.stream, incoming.have, self._window, ())",
        ),
    ),
    _m(
        "an offer is not asked about again",
        "receiver",
        (
            "        for incoming in [s for s in self._streams.values() if s.have is None]:\n",
            "        for incoming in ():\n",
        ),
    ),
    _m(
        "ranges do not merge what overlaps",
        "ranges",
        ("        return stop - start - known\n", "        return stop - start\n"),
        exempt="pieces never overlap in part, and a whole repeat is seen before it is counted",
    ),
)
