"""Rules of a worker's core, each broken once."""

from benchmarks.mutants.mutant import Mutant, broken

W = "workers."


def _m(name: str, module: str, *edits: tuple[str, str], exempt: str | None = None) -> Mutant:
    return broken("worker", name, W + module, *edits, exempt=exempt)


WORKER = (
    _m(
        "a repeated start opens the leg anew",
        "worker",
        (
            "        if seq in self._legs:\n            return self._repeat",
            "        if False:\n            return self._repeat",
        ),
    ),
    _m(
        "a stopped leg may be started",
        "worker",
        (
            "        if self._absent.tombstone(seq) is not None:\n"
            "            return self._refusal(seq)\n        reason = senseless",
            "        reason = senseless",
        ),
    ),
    _m(
        "a gateway's lease never lapses",
        "worker",
        ("if at + self._lease_s <= now]:", "if False]:"),
    ),
    _m(
        "a stopped leg keeps its KV",
        "worker",
        ("        self._runner.close(leg)\n", "        self._legs.pop(leg.seq)\n"),
    ),
    _m(
        "a full pool ends the worker",
        "worker",
        (
            "        except NoRoom as full:\n            self._sharing",
            "        except KeyError as full:\n            self._sharing",
        ),
    ),
    _m(
        "what comes before its start is dropped",
        "absent",
        ("        parked.messages.append(message)\n", ""),
    ),
    _m(
        "law that differs does not cut own history",
        "legs",
        ("        if cut is not None:\n            self._truncate(cut)\n", "        cut = None\n"),
    ),
    _m(
        "a cut leaves the engine's tokens",
        "legs",
        ("            self.applied = self.cut = length\n", "            self.applied = length\n"),
    ),
    _m(
        "a feed with a gap is taken",
        "legs",
        ("if feed.start > fed or feed.law <= fed", "if feed.law <= fed"),
    ),
    _m(
        "the limit does not end a leg",
        "legs",
        ("        if length >= start.limit:\n            return True\n", ""),
        ("        at = min(at, start.limit)\n", "        at = at + 1\n"),
    ),
    _m(
        "an old pause is obeyed",
        "legs",
        ("message.seq <= self.switch_seq:", "message.seq < self.switch_seq - 1:"),
        exempt="a pause that is late by a resume costs the cut's deadline, and no promise",
    ),
    _m(
        "a relay starts without law",
        "legs",
        ("        if not self.law or self.ended:", "        if self.ended:"),
    ),
    _m(
        "an export of tokens that were taken back goes on",
        "legs",
        ("            if length < min(computed, send.stop):\n", "            if False:\n"),
        exempt="an engine checks what it reads: a stream whose tokens are gone breaks by itself",
    ),
    _m(
        "KV of another leg's tokens is taken",
        "handover",
        ("        if offer.stop != leg.import_tokens:", "        if False:"),
        exempt="the machine never asks for other tokens than the leg wants",
    ),
    _m(
        "KV lands with slices missing",
        "handover",
        (
            "        missing = self._runner.engine.missing(leg.seq)\n        if missing:",
            "        missing = 0\n        if missing:",
        ),
        exempt="the receiver counts what is missing too and completes nothing else",
    ),
    _m(
        "a source that ends tells nobody",
        "handover",
        ("        for epoch in list(leg.exports):\n", "        for epoch in ():\n"),
    ),
    _m(
        "a leg that ends keeps what still comes in",
        "handover",
        (
            "[DropImport(stream=stream) for stream in sorted(leg.imports)]\n\n    def _importing",
            "[]\n\n    def _importing",
        ),
    ),
    _m(
        "blocks of a running leg are given away",
        "kv.pool",
        (
            "        self._references[block] -= 1\n"
            "        if self._references[block] == 0:\n            if",
            "        self._references[block] = 0\n"
            "        if self._references[block] == 0:\n            if",
        ),
    ),
    _m(
        "the cache's salt is no part of a block's name",
        "kv.prefix",
        ("for text in (fingerprint, cache_salt):", "for text in (fingerprint,):"),
        exempt="simulated KV depends on the tokens alone, so a wrong salt gives right bytes",
    ),
)
