"""Certificates for tests: good ones, another CA's, another site's and expired ones."""

import datetime
import ssl
from pathlib import Path

from transport import tls
from transport.certificates import Authority, Pair
from transport.tls import TlsFiles, client_context, server_context

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


def write(folder: Path, authority: Authority, name: str, pair: Pair) -> TlsFiles:
    """The pair's files in a folder of its own, beside the CA's certificate."""
    there = folder / f"{name}-{len(list(folder.iterdir()))}"
    there.mkdir()
    files = TlsFiles(ca=there / "ca.pem", cert=there / f"{name}.pem", key=there / f"{name}.key")
    files.ca.write_bytes(authority.pair.cert)
    files.cert.write_bytes(pair.cert)
    files.key.write_bytes(pair.key)
    return files


class Rig:
    """One deployment's CA and what belongs to it, and a stranger's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = Authority(NOW)
        self.other = Authority(NOW)

    def files(self, site: str) -> TlsFiles:
        return write(self.folder, self.ours, site, self.ours.issue(site))

    def expired(self, site: str) -> TlsFiles:
        pair = self.ours.issue(site, begins=NOW - 2 * DAY, until=NOW - DAY)
        return write(self.folder, self.ours, site, pair)

    def brief(self, site: str, until: datetime.datetime) -> TlsFiles:
        """Good now, and expired at a time that a test can wait for."""
        pair = self.ours.issue(site, begins=NOW - DAY, until=until)
        return write(self.folder, self.ours, site, pair)

    def foreign(self, site: str) -> TlsFiles:
        """Another CA's certificate; its owner even knows our CA, and would trust us."""
        files = write(self.folder, self.other, site, self.other.issue(site))
        files.ca.write_bytes(self.other.pair.cert + self.ours.pair.cert)
        return files

    def server(self, files: TlsFiles, *sites: str) -> ssl.SSLContext:
        return _unchecked(server_context, files, sites or None)

    def client(self, files: TlsFiles) -> ssl.SSLContext:
        return _unchecked(client_context, files)

    def bare(self) -> ssl.SSLContext:
        """A client that trusts our CA and has no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.files("nobody").ca)
        return context


def _unchecked(make, *arguments) -> ssl.SSLContext:
    """A context of files that we ourselves would not begin with."""
    check, tls._check_time = tls._check_time, lambda *_: None
    try:
        return make(*arguments)
    finally:
        tls._check_time = check
