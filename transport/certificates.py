"""Makes a CA of a deployment's own and its sites' certificates: enough for a first try."""

import datetime
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from transport.tls import site_hostname

EARLIER = datetime.timedelta(hours=1)  # clocks of sites may differ
ONE_YEAR = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, in PEM. The key has no passphrase."""

    cert: bytes
    key: bytes


class Authority:
    """A new CA. What it issues is valid from shortly before `now` until `until`."""

    def __init__(self, now: datetime.datetime, lasts: datetime.timedelta = ONE_YEAR) -> None:
        self._begins = now - EARLIER
        self.until = now + lasts
        self._key = ec.generate_private_key(ec.SECP256R1())
        # A name of its own: two CAs can be told apart in a log.
        self._name = _named(f"pdd CA {secrets.token_hex(4)}")
        self._certificate = (
            self._builder(self._name, self._key, self._begins, self.until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .sign(self._key, SHA256())
        )

    @property
    def pair(self) -> Pair:
        """The CA itself. Who has its key can make certificates for any site."""
        return _pair(self._certificate, self._key)

    def issue(
        self,
        site: str,
        begins: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
    ) -> Pair:
        """A certificate with which `site` both listens and dials. None: the CA's own times."""
        key = ec.generate_private_key(ec.SECP256R1())
        host = site_hostname(site)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(_named(host), key, begins or self._begins, until or self.until)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .sign(self._key, SHA256())
        )
        return _pair(certificate, key)

    def _builder(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begins: datetime.datetime,
        until: datetime.datetime,
    ) -> x509.CertificateBuilder:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return (
            x509.CertificateBuilder(issuer_name=self._name)
            .subject_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(until)
            .add_extension(subject, critical=False)
            .add_extension(issuer, critical=False)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    """A site's key signs handshakes, the CA's certificates."""
    return x509.KeyUsage(
        digital_signature=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=not signs,
        crl_sign=not signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        cert=certificate.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
