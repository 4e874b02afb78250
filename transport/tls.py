"""TLS 1.3 between sites: contexts in which both ends show a certificate of the deployment's own CA.

A site's certificate carries its name as a DNS name (`site_hostname`). Who dials passes the name of
the site it means, so that the check holds whatever address or forwarded port is dialled.
"""

import datetime
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

DOMAIN = "pdd.internal"  # .internal is set aside for private use: nobody else answers for it

log = logging.getLogger(__name__)


class TlsError(Exception):
    """Certificates that cannot be used; one line naming the file and what is wrong with it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class TlsRefused(ssl.SSLError):
    """One end refused the other; the text says which, why, and who we are."""

    def __init__(self, text: str) -> None:
        super().__init__(ssl.SSL_ERROR_SSL, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A site's identity as PEM files: the CA's certificate, the site's own, and its private key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """One site's two halves: `server` for the ports it listens on, `client` for what it dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def site_hostname(site: str) -> str:
    """The DNS name that stands for a site in its certificate."""
    return f"{site.lower()}.{DOMAIN}"


def load_contexts(files: TlsFiles, site: str, sites: Iterable[str]) -> TlsContexts:
    """The contexts of `site`; its ports take connections from `sites`. Raises TlsError."""
    check_files(files, site)
    return TlsContexts(server=server_context(files, sites), client=client_context(files))


def server_context(files: TlsFiles, sites: Iterable[str] | None = None) -> ssl.SSLContext:
    """For listening: who connects must show a certificate of the CA. Raises TlsError.

    With `sites` it must be one of these; None: any that the CA knows. Who is refused is logged.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files, sites)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # connections stay open; none is ever resumed
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For dialling: the peer must show a certificate of the CA, for the `server_hostname` asked.

    Raises TlsError.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files, None)
    context.hostname_checks_common_name = False
    return context


def refusal(error: BaseException | None) -> TlsRefused | None:
    """The refusal behind an error, however often it was wrapped."""
    while error is not None and not isinstance(error, TlsRefused):
        error = error.__cause__ or error.__context__
    return error


class OneConnection(ssl.SSLContext):
    """A context for one connection whose owner wants to know and tell why it was refused.

    Pass it to the event loop in the place of the context it is made of. Loops keep the connection
    to themselves, and of a refusal they may report no more than that the peer has left.
    """

    def __new__(cls, context: ssl.SSLContext) -> "OneConnection":
        return super().__new__(cls, context.protocol)

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._made: _Connection | None = None

    @property
    def refused(self) -> TlsRefused | None:
        """Why one end refused the other; None: neither did so far."""
        return None if self._made is None else self._made.refused

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        made = self._context.wrap_bio(*arguments, **options)
        if isinstance(made, _Connection):
            self._made, made.silent = made, True
        return made


# ---------------------------------------------------------------------------------------- contexts


def _context(protocol: int, files: TlsFiles, sites: Iterable[str] | None) -> ssl.SSLContext:
    ours = check_files(files, None)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.cert, files.key)
    names = None if sites is None else frozenset(map(site_hostname, sites))
    context.sslobject_class = type("_Told", (_Connection,), {"ours": ours, "known": names})
    return context


class _Connection(ssl.SSLObject):
    """A TLS connection that says in plain words why it was refused, and lets the peer know."""

    ours: str  # who we are
    known: frozenset[str] | None  # whom we take, by DNS name; None: all that the CA knows
    refused: TlsRefused | None = None
    silent = False  # somebody else tells of a refusal

    def do_handshake(self) -> None:
        if self.refused is not None:
            raise self.refused
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if type(error) not in (ssl.SSLError, ssl.SSLCertVerificationError):
                raise  # no refusal: more is to be read or written, or the peer has left
            refused = self._refuse(_reason(error, self.server_hostname))
            if error.reason in TOLD:
                # Event loops send what is pending, here our alert, only when more is to be read.
                raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "telling the peer") from error
            raise refused from error
        if self.known is not None and self.known.isdisjoint(names := peer_names(self)):
            shown = ", ".join(names) or "no name"
            raise self._refuse(f"the peer's certificate is of {shown}, not of a site known here")

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """In TLS 1.3 a client learns only here that the server refused it."""
        try:
            return super().read(len, buffer)
        except ssl.SSLError as error:
            if "_ALERT_" not in (error.reason or ""):
                raise
            raise self._refuse(_reason(error, self.server_hostname)) from error

    def _refuse(self, why: str) -> TlsRefused:
        self.refused = TlsRefused(f"{why}; ours is {self.ours}")
        if self.server_side and not self.silent:
            log.warning("TLS connection refused: %s", self.refused)
        return self.refused


def peer_names(connection: ssl.SSLObject | ssl.SSLSocket) -> list[str]:
    """The DNS names in the certificate that the other end has shown."""
    shown: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return [name for kind, name in shown if kind == "DNS"]


# By OpenSSL's verify codes (x509_vfy.h), and by its reasons (sslerr.h).
VERIFY = {
    7: "is of another CA",
    9: "is not valid yet",
    10: "has expired",
    18: "is of another CA (it signed itself)",
    19: "is of another CA",
    20: "is of another CA",
    21: "is of another CA",
    26: "is not for this use",
}
HOSTNAME_MISMATCH = 62
# What we find out and the peer cannot know, if it speaks TLS at all.
TOLD = {"CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "UNSUPPORTED_PROTOCOL"}
REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer showed no certificate",
    "HTTP_REQUEST": "the peer does not speak TLS",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer speaks no TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not take our version of TLS",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer wants a certificate and got none",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refused our certificate: it is of another CA than its own",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refused our certificate: it wants another site's",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refused our certificate: it has expired",
}


def _reason(error: ssl.SSLError, server_hostname: str | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == HOSTNAME_MISMATCH:
            return f"the peer's certificate is not of {server_hostname}"
        what = VERIFY.get(error.verify_code, f"was refused: {error.verify_message}")
        return f"the peer's certificate {what}"
    reason = error.reason or "unknown"
    return REASONS.get(reason, f"no TLS with the peer: {reason.replace('_', ' ').lower()}")


# ------------------------------------------------------------------------------------------- files


def check_files(files: TlsFiles, site: str | None) -> str:
    """See that the files can be used, now and together; who they say we are. Raises TlsError.

    With `site`, the certificate must be that site's.
    """
    authorities = _certificates(files.ca)
    chain = _certificates(files.cert)
    key = _private_key(files.key)
    for path, certificates in ((files.ca, authorities), (files.cert, chain)):
        for certificate in certificates:
            _check_time(path, certificate)
    if _public_bytes(key) != _public_bytes(chain[0]):
        raise TlsError(files.key, f"this key does not belong to the certificate {files.cert}")
    if not any(_issued(chain[-1], authority) for authority in authorities):
        raise TlsError(files.cert, f"it is of another CA than {files.ca}")
    names = _names(chain[0])
    if site is not None and site_hostname(site) not in names:
        has = ", ".join(names) or "none"
        raise TlsError(
            files.cert,
            f"it is not a certificate for site {site}: "
            f"it needs the DNS name {site_hostname(site)}, it has {has}",
        )
    return f"{', '.join(names) or 'no name'} of {_subject(authorities[0])}"


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise TlsError(path, "not a certificate in PEM") from None


def _private_key(path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(_read(path), None)
    except TypeError:
        raise TlsError(path, "this key has a passphrase; give one without") from None
    except ValueError:
        raise TlsError(path, "not a private key in PEM") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(path, f"cannot be read: {error.strerror}") from error


def _check_time(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise TlsError(path, f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < certificate.not_valid_before_utc:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise TlsError(path, f"not valid before {begins}; is this machine's clock right?")


def _public_bytes(owner: PrivateKeyTypes | x509.Certificate) -> bytes:
    return owner.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.DNSName)


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a CA without a name"
