"""Until when the certificates of `security.tls` are valid."""

import datetime
from pathlib import Path

from cryptography import x509

from orchestrator.doctor.finding import Finding, good_if
from orchestrator.topology.schema import Topology

RENEW = datetime.timedelta(days=30)


def certificate_findings(topology: Topology, now: datetime.datetime) -> list[Finding]:
    """The CA, and each site whose certificate must be on this machine.

    That they can be used now was found out when the topology was loaded.
    """
    tls = topology.security.tls
    if tls is None:
        return []
    found = [_validity("certificate of the CA", Path(tls.ca), now)]
    for name, site in topology.sites.items():
        if site.launch != "local" and name != topology.gateway.site:
            continue
        found.append(_validity(f"certificate of {name}", tls.files(name).cert, now))
    return found


def _validity(check: str, path: Path, now: datetime.datetime) -> Finding:
    until = min(c.not_valid_after_utc for c in x509.load_pem_x509_certificates(path.read_bytes()))
    return good_if(
        until - now >= RENEW,
        check,
        f"valid until {until:%Y-%m-%d}, {(until - now).days} days",
        f"make a new one before, with your CA or pdd init --certs: {path}",
    )
