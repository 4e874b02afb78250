"""`security.tls`: the certificates of the sites that start here, and each mistake's line."""

from pathlib import Path

import pytest

from orchestrator.topology.load import load_topology
from orchestrator.topology.mistakes import TopologyError
from tests.transport.tls_rig import DAY, NOW, Rig
from transport.certificates import Authority, Pair
from transport.tls import TlsFiles

TEXT = """\
model: smollm2-135m
sites:
  hami: {pools: {all: {chip: cpu, roles: [prefill, relay]}}}
  shenzhen: {pools: {all: {chip: cpu, roles: [main]}}}
links:
  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
gateway: {site: shenzhen}
security:
  tls:
    ca: certs/ca.pem
    cert: certs/{site}.pem
    key: certs/{site}.key
"""


class Folder:
    """A topology and its certificates."""

    def __init__(self, folder: Path) -> None:
        self.certs = folder / "certs"
        self.certs.mkdir()
        self.file = folder / "topology.yaml"
        self.authority = Authority(NOW)
        (self.certs / "ca.pem").write_bytes(self.authority.pair.cert)
        for site in ("hami", "shenzhen"):
            self.write(site, self.authority.issue(site))

    def write(self, site: str, pair: Pair) -> None:
        (self.certs / f"{site}.pem").write_bytes(pair.cert)
        (self.certs / f"{site}.key").write_bytes(pair.key)

    def mistakes(self, text: str = TEXT) -> list[str]:
        self.file.write_text(text)
        with pytest.raises(TopologyError) as error:
            load_topology(self.file)
        lines = str(error.value).splitlines()
        return [line.removeprefix(f"{self.file}:").replace(f"{self.certs}/", "") for line in lines]


@pytest.fixture
def there(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_paths_are_from_the_file_and_site_stands_for_each_site(there: Folder) -> None:
    there.file.write_text(TEXT)
    tls = load_topology(there.file).security.tls
    assert tls is not None
    assert tls.files("hami") == TlsFiles(
        ca=there.certs / "ca.pem", cert=there.certs / "hami.pem", key=there.certs / "hami.key"
    )
    for site in ("hami", "shenzhen"):
        assert tls.files(site).cert.is_file()


def test_without_tls_there_is_none(there: Folder) -> None:
    there.file.write_text(TEXT[: TEXT.index("security:")])
    assert load_topology(there.file).security.tls is None


def test_a_missing_certificate(there: Folder) -> None:
    (there.certs / "hami.pem").unlink()
    assert there.mistakes() == [
        "11:11: security.tls.cert: hami.pem: cannot be read: No such file or directory"
    ]


def test_a_missing_authority_is_one_mistake_for_all_sites(there: Folder) -> None:
    (there.certs / "ca.pem").unlink()
    assert there.mistakes() == [
        "10:9: security.tls.ca: ca.pem: cannot be read: No such file or directory"
    ]


def test_every_sites_own_mistake(there: Folder) -> None:
    expired = there.authority.issue("hami", begins=NOW - 2 * DAY, until=NOW - DAY)
    there.write("hami", expired)
    (there.certs / "shenzhen.key").write_text("nonsense")
    assert there.mistakes() == [
        f"11:11: security.tls.cert: hami.pem: expired on {NOW - DAY:%Y-%m-%d %H:%M} UTC",
        "12:10: security.tls.key: shenzhen.key: not a private key in PEM",
    ]


def test_one_certificate_for_all_is_that_of_one(there: Folder) -> None:
    text = TEXT.replace("certs/{site}", "certs/hami")
    assert there.mistakes(text) == [
        "11:11: security.tls.cert: hami.pem: it is not a certificate for site shenzhen: "
        "it needs the DNS name shenzhen.pdd.internal, it has hami.pdd.internal"
    ]


def test_another_deployments_certificates(there: Folder, tmp_path_factory) -> None:
    stranger = Rig(tmp_path_factory.mktemp("stranger"))
    there.write("hami", stranger.ours.issue("hami"))
    assert there.mistakes() == [
        f"11:11: security.tls.cert: hami.pem: it is of another CA than {'ca.pem'}"
    ]


def test_certificates_of_a_site_that_starts_elsewhere_are_not_looked_for(there: Folder) -> None:
    text = TEXT.replace("hami: {pools", "hami: {launch: agent, pools")
    (there.certs / "hami.pem").unlink()
    there.file.write_text(text)
    assert load_topology(there.file).sites["hami"].launch == "agent"
    (there.certs / "shenzhen.key").unlink()
    assert there.mistakes(text) == [
        "12:10: security.tls.key: shenzhen.key: cannot be read: No such file or directory"
    ]


def test_at_a_site_only_its_own_are_looked_for(there: Folder) -> None:
    (there.certs / "shenzhen.pem").unlink()
    (there.certs / "shenzhen.key").unlink()
    there.file.write_text(TEXT)
    tls = load_topology(there.file, at="hami").security.tls
    assert tls is not None
    assert tls.files("hami").key.is_file()
    (there.certs / "hami.key").unlink()
    with pytest.raises(TopologyError, match=r"12:10: security.tls.key: .*hami.key"):
        load_topology(there.file, at="hami")


def test_names_that_certificates_cannot_tell_apart(there: Folder) -> None:
    text = TEXT.replace(
        "links:", "  HAMI: {launch: agent, pools: {all: {chip: cpu, roles: [relay]}}}\nlinks:"
    ).replace("links:\n", "links:\n  - {between: [HAMI, hami], delay: 1ms, bandwidth: 20Gbps}\n")
    assert there.mistakes(text) == [
        "5:9: sites.HAMI: differs from 'hami' only in case: certificates cannot tell them apart"
    ]


@pytest.mark.parametrize(
    ("tls", "lines"),
    {
        "{ca: certs/ca.pem}": [
            "9:3: security.tls.cert: missing; it has no default",
            "9:3: security.tls.key: missing; it has no default",
        ],
        "certs": ["9:8: security.tls: expected keys and values, got the text 'certs'"],
        "{ca: certs/ca.pem, cert: 3, key: 'certs/{site}.key'}": [
            "9:33: security.tls.cert: expected text, got 3"
        ],
        "{ca: certs/ca.pem, cert: a, key: b, keys: c}": [
            "9:44: security.tls.keys: unknown key 'keys'; did you mean 'key'?"
        ],
    }.items(),
)
def test_what_does_not_fit_the_schema(there: Folder, tls: str, lines: list[str]) -> None:
    assert there.mistakes(TEXT[: TEXT.index("  tls:")] + f"  tls: {tls}\n") == lines
