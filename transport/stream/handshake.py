"""The two ends of a handshake, without I/O: who is there, and what both must agree on.

    dialler   Hello ->            -> Proof ->                 -> Terms -> offers and pieces
    listener            <- Hello            <- Proof, Terms

The dialler proves itself first, so a stranger learns nothing; each tells its terms only to a peer
that has. Where TLS proves the peers the proofs are of the same secret all the same.
"""

import hashlib
import hmac
from typing import TypeVar

from transport.stream.frames import Frame, Goodbye, Hello, Kind, Proof, Terms, UnknownKind

HANDSHAKE_KINDS = frozenset({Kind.HELLO, Kind.PROOF, Kind.TERMS, Kind.GOODBYE})

F = TypeVar("F", Hello, Proof, Terms)


class HandshakeRefused(Exception):
    """The peer is not of this deployment, or serves another model; again it would be the same.

    `told` is what the other end should hear of it; None: it said so itself.
    """

    def __init__(self, reason: str, told: Goodbye | None = None) -> None:
        super().__init__(reason)
        self.told = told


class Dialler:
    """The connecting end. Send `mine` first, then feed `handle` until `terms` are known."""

    def __init__(self, mine: Hello, secret: bytes, terms: Terms) -> None:
        self.mine = mine
        self.peer = "the listener"
        self.terms: Terms | None = None  # the other end's
        self._secret = secret
        self._my_terms = terms
        self._theirs: Hello | None = None
        self._proved = False

    def handle(self, frame: Frame) -> list[Frame]:
        """What to answer. Raises HandshakeRefused and UnknownKind."""
        if self._theirs is None:
            self._theirs = _expect(frame, Hello, self.peer)
            self.peer = self._theirs.name
            return [Proof(_digest(self._secret, b"dialler", self.mine, self._theirs))]
        if not self._proved:
            proof = _expect(frame, Proof, self.peer)
            wanted = _digest(self._secret, b"listener", self.mine, self._theirs)
            if not hmac.compare_digest(proof.digest, wanted):
                raise HandshakeRefused(f"{self.peer} does not know this deployment's secret")
            self._proved = True
            return []
        terms = _expect(frame, Terms, self.peer)
        _compare(self.mine.name, self._my_terms, self.peer, terms)
        self.terms = terms
        return [self._my_terms]


class Listener:
    """The listening end. Feed `handle` until `terms` are known."""

    def __init__(self, name: str, nonce: bytes, secret: bytes, terms: Terms) -> None:
        self.peer = "a stranger"
        self.session = b""
        self.terms: Terms | None = None  # the other end's
        self._name = name
        self._nonce = nonce
        self._secret = secret
        self._my_terms = terms
        self._hellos: tuple[Hello, Hello] | None = None
        self._proved = False

    def handle(self, frame: Frame) -> list[Frame]:
        """What to answer. Raises HandshakeRefused and UnknownKind."""
        if self._hellos is None:
            theirs = _expect(frame, Hello, self.peer)
            mine = Hello(self._name, self._nonce, theirs.session)
            self._hellos = theirs, mine
            self.peer, self.session = theirs.name, theirs.session
            return [mine]
        if not self._proved:
            proof = _expect(frame, Proof, self.peer)
            if not hmac.compare_digest(
                proof.digest, _digest(self._secret, b"dialler", *self._hellos)
            ):
                reason = f"{self._name} has another secret than {self.peer}"
                raise HandshakeRefused(reason, Goodbye(reason))
            self._proved = True
            return [Proof(_digest(self._secret, b"listener", *self._hellos)), self._my_terms]
        terms = _expect(frame, Terms, self.peer)
        _compare(self._name, self._my_terms, self.peer, terms)
        self.terms = terms
        return []


def _expect(frame: Frame, kind: type[F], peer: str) -> F:
    if isinstance(frame, Goodbye):
        raise HandshakeRefused(f"{peer}: {frame.reason}")
    if not isinstance(frame, kind):
        raise UnknownKind(f"{type(frame).__name__} where {kind.__name__} belongs")
    return frame


def _compare(name: str, mine: Terms, peer: str, theirs: Terms) -> None:
    if mine.model != theirs.model:
        reason = f"{name} has model {mine.model}, {peer} has model {theirs.model}"
        raise HandshakeRefused(reason, Goodbye(reason))


def _digest(secret: bytes, side: bytes, dialler: Hello, listener: Hello) -> bytes:
    """HMAC-SHA256 over both hellos, each field with its length."""
    fields = [side]
    for hello in (dialler, listener):
        fields += [hello.name.encode(), hello.nonce, hello.session]
    message = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.new(secret, message, hashlib.sha256).digest()
