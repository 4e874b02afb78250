"""Rules of the KV transport, each broken once."""

from benchmarks.mutants.mutant import Mutant, broken

T = "transport.stream."
# A connection must break, or a frame be damaged, with pieces in flight where no deadline may pass.
RARE = "rarer in mild cases than the seeds tried; tests of the machines or of virtual KV notice"


def _m(name: str, module: str, *edits: tuple[str, str], exempt: str | None = None) -> Mutant:
    return broken("transport", name, T + module, *edits, exempt=exempt)


TRANSPORT = (
    # ------------------------------------------------------------ the sender
    _m(
        "what was in flight is not sent again",
        "sender",
        ("            out.uncertain.update(lost)\n", ""),
        exempt=RARE,
    ),
    _m(
        "a broken connection forgets what is unacknowledged",
        "sender",
        (
            "            out.uncertain.update(lost)\n",
            "            for key in lost:\n                del out.unacked[key]\n",
        ),
    ),
    _m(
        "a new connection is not offered the stream again",
        "sender",
        (
            "            if not out.asked_on:\n",
            "            if not out.asked_on and out.have is None:\n",
        ),
        exempt=RARE,
    ),
    _m(
        "after a broken connection the others are not asked what arrived",
        "sender",
        (
            "                elif asked or not out.awaiting:",
            "                elif not self._connections:",
        ),
    ),
    _m(
        "an answer to an earlier attempt is taken",
        "sender",
        (
            "        if not out.awaiting or frame.attempt != out.attempt:\n",
            "        if not out.awaiting:\n",
        ),
        exempt=RARE,
    ),
    _m(
        "what the receiver has is sent again all the same",
        "sender",
        (
            "            if received.get((key.layer, key.part), none).covers(",
            "            if Ranges().covers(",
        ),
        exempt="the receiver acknowledges a repeat without reading it: only the line notices",
    ),
    _m(
        "credit is ignored",
        "sender",
        (
            "        return not self._flying_bytes or self._flying_bytes + nbytes <= credit\n",
            "        return True\n",
        ),
        exempt="a receiver bears twice its credit, then drops the connection; tests of the "
        "machines hold its memory against the credit",
    ),
    _m(
        "an offer waits for ever",
        "sender",
        ("            out.give_up_at = now + self._resume_s\n", "            pass\n"),
        exempt="the core's own deadline for KV ends it",
    ),
    _m(
        "a stream is done before all is acknowledged",
        "sender",
        (
            "        if ready and not out.unacked and not out.finish_sent:\n",
            "        if ready and not out.finish_sent:\n",
        ),
    ),
    _m(
        "a piece that is asked for again is not sent again",
        "sender",
        (
            "                self._goodput.lost(1)\n                out.enqueue(key, first=True)\n",
            "                self._goodput.lost(1)\n",
        ),
    ),
    _m(
        "a refusal is not heard",
        "sender",
        ("        self._end(out, Phase.BROKEN, frame.reason)\n", "        pass\n"),
        exempt="the stream ends with its source leg",
    ),
    _m(
        "a cancelled stream is not told",
        "sender",
        (
            "                self._connections.cancel(Cancel(out.stream, reason))\n",
            "                pass\n",
        ),
        exempt="the receiver hears of it when its leg is stopped",
    ),
    _m(
        "a silent connection is kept",
        "connections",
        (
            "        return [c for c, held in self._connections.items() "
            "if now >= held.heard_at + SILENCE_S]\n",
            "        return []\n",
        ),
        exempt="the receiver closes it as well, and the stream gives up",
    ),
    _m(
        "a broken connection is not dialled again",
        "dial",
        ("        elif self._next_at is None:", "        elif False:"),
        exempt=RARE,
    ),
    _m(
        "only one connection is dialled",
        "dial",
        ("        most = 1 if self._tries else self.connections\n", "        most = 1\n"),
        exempt="each that comes up asks for the next: a round trip later",
    ),
    # ------------------------------------------------------------ the receiver
    _m(
        "every piece counts twice",
        "incoming",
        (
            "            self.missing -= ranges.add(start, key.stop)\n",
            "            self.missing -= 2 * ranges.add(start, key.stop)\n",
        ),
    ),
    _m(
        "tokens that were here before count again",
        "incoming",
        ("        start = max(key.start, self.first)\n", "        start = key.start\n"),
    ),
    _m(
        "pieces that came before the answer are lost",
        "receiver",
        ("            incoming.skipped[key] = conn\n", "            pass\n"),
    ),
    _m(
        "a piece of another session is taken",
        "receiver",
        (
            "        if incoming.session != connection.session:\n            return",
            "        if False:\n            return",
        ),
        exempt="its bits are right; only what a restarted sender is told could differ",
    ),
    _m(
        "the first attempt of a new session is taken for an old one",
        "receiver",
        (
            "        elif incoming.session == connection.session and frame.attempt <=",
            "        elif frame.attempt <=",
        ),
        exempt="a worker that was started again does not know the streams of its life before",
    ),
    _m(
        "pieces are acknowledged on another connection",
        "receiver",
        (
            "            for connection in self._connections_of(brought):\n"
            "                connection.acks.setdefault(data.stream, []).append(data.key)\n",
            "            for connection in list(self._connections.values())[:1]:\n"
            "                connection.acks.setdefault(data.stream, []).append(data.key)\n",
        ),
        exempt=RARE,
    ),
    _m(
        "a damaged piece is acknowledged",
        "receiver",
        (
            "        if error is None:\n            incoming.store",
            "        if error is None or isinstance(error, CorruptFrame):\n"
            "            incoming.store",
        ),
        exempt=RARE,
    ),
    _m(
        "a damaged piece is not asked for again",
        "receiver",
        (
            "            connection.out.append(Again(data.stream, (data.key,)))\n",
            "            pass\n",
        ),
        exempt=RARE,
    ),
    _m(
        "a corrupt piece is given up",
        "receiver",
        ("        elif isinstance(error, CorruptFrame):\n", "        elif False:\n"),
        exempt="the stream breaks and the machine finds another source: slower, but no promise",
    ),
    _m(
        "an offer is answered while a lost connection's pieces are being stored",
        "receiver",
        (
            "        if any(held.brought[0] not in self._connections "
            "for held in incoming.pending.values()):\n",
            "        if False:\n",
        ),
        exempt="such a piece is sent again, and the repeat is not stored twice",
    ),
    _m(
        "a completed stream is not told",
        "receiver",
        (
            "        self._tell(incoming, Done(stream))\n        started",
            "        started",
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
            "Accept(stream, attempt, incoming.have, incoming.ranges)",
            "Accept(stream, attempt, incoming.have, ())",
        ),
        exempt=RARE,
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
    # ------------------------------------------------------------ frames and handshake
    _m(
        "a corrupt piece is stored",
        "framing",
        ("    if zlib_ng.crc32(body) != preamble.body_crc:\n", "    if False:\n"),
    ),
    _m(
        "a corrupt head is read",
        "framing",
        (
            "    if zlib_ng.crc32(data, zlib_ng.crc32(preamble.summed)) != preamble.head_crc:\n",
            "    if False:\n",
        ),
        exempt=RARE,
    ),
    _m(
        "a dialler need not know the secret",
        "handshake",
        (
            "            if not hmac.compare_digest(\n"
            '                proof.digest, _digest(self._secret, b"dialler", *self._hellos)\n'
            "            ):\n",
            "            if False:\n",
        ),
        exempt="no stranger comes to a virtual deployment; tests of the handshake notice",
    ),
    _m(
        "a listener need not know the secret",
        "handshake",
        (
            "            if not hmac.compare_digest(proof.digest, wanted):\n",
            "            if False:\n",
        ),
        exempt="no stranger listens in a virtual deployment; tests of the handshake notice",
    ),
    _m(
        "another model is taken",
        "handshake",
        ("    if mine.model != theirs.model:\n", "    if False:\n"),
        exempt="a virtual deployment serves one model; tests of the handshake notice",
    ),
)
