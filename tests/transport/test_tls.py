"""TLS between sites over real sockets: who is let in, who is not, and what each end says."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.transport.tls_rig import DAY, NOW, Rig, write
from transport.certificates import Authority
from transport.tls import (
    OneConnection,
    TlsError,
    TlsRefused,
    check_files,
    client_context,
    load_contexts,
    refusal,
    server_context,
    site_hostname,
)

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}
WAIT_S = 5.0


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable:
    return LOOPS[request.param]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def ask(server: ssl.SSLContext, client: ssl.SSLContext | None, site: str) -> bytes:
    """What a server that answers b"served" to whoever gets in lets a client read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"served")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    port = listening.sockets[0].getsockname()[1]
    dial = None if client is None else OneConnection(client)
    host = None if client is None else site_hostname(site)
    try:
        async with asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=dial, server_hostname=host
            )
            try:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                return await reader.read(100)
            finally:
                writer.transport.abort()
    except OSError as error:
        raise (dial.refused if dial is not None and dial.refused else error) from error
    finally:
        listening.close()


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """The one line that the listening end says."""
    (record,) = [r for r in caplog.records if r.name == "transport.tls"]
    assert record.levelno == logging.WARNING
    line = record.getMessage()
    assert "\n" not in line
    return line.removeprefix("TLS connection refused: ")


def test_two_sites_of_one_ca_talk(run, rig, caplog):
    server, client = rig.server(rig.files("b"), "a", "b"), rig.client(rig.files("a"))
    assert run(ask(server, client, "b")) == b"served"
    assert [r for r in caplog.records if r.name == "transport.tls"] == []


def test_names_that_no_dns_would_take_are_good_site_names(run, rig):
    server, client = rig.server(rig.files("My_Site-")), rig.client(rig.files("0"))
    assert run(ask(server, client, "My_Site-")) == b"served"


def test_without_a_certificate_nothing_is_served(run, rig, caplog):
    server = rig.server(rig.files("b"))
    with pytest.raises(ssl.SSLError, match="certificate required"):
        run(ask(server, rig.bare(), "b"))
    assert logged(caplog).startswith("the peer showed no certificate; ours is b.pdd.internal of CN")


def test_a_client_of_another_ca_is_refused_and_both_say_why(run, rig, caplog):
    server, client = rig.server(rig.files("b")), rig.client(rig.foreign("a"))
    with pytest.raises(TlsRefused) as refused:
        run(ask(server, client, "b"))
    assert str(refused.value).startswith(
        "the peer refused our certificate: it is of another CA than its own; "
        "ours is a.pdd.internal of CN=pdd CA "
    )
    assert logged(caplog).startswith("the peer's certificate is of another CA; ours is b.pdd.int")


def test_a_server_of_another_ca_is_refused_and_both_say_why(run, rig, caplog):
    server, client = rig.server(rig.foreign("b")), rig.client(rig.files("a"))
    with pytest.raises(TlsRefused, match=r"the peer's certificate is of another CA; ours is a\."):
        run(ask(server, client, "b"))
    assert logged(caplog).startswith(
        "the peer refused our certificate: it is of another CA than its own; ours is b.pdd.internal"
    )


def test_another_sites_server_is_refused_and_both_say_why(run, rig, caplog):
    """As when a forwarded port leads to the wrong site."""
    server, client = rig.server(rig.files("c")), rig.client(rig.files("a"))
    with pytest.raises(TlsRefused, match=r"the peer's certificate is not of b\.pdd\.internal; our"):
        run(ask(server, client, "b"))
    assert logged(caplog).startswith(
        "the peer refused our certificate: it wants another site's; ours is c.pdd.internal"
    )


def test_a_client_of_a_site_that_is_not_in_the_deployment_gets_nothing(run, rig, caplog):
    """TLS cannot tell it why: by its own account the handshake was good."""
    server, client = rig.server(rig.files("b"), "a", "b"), rig.client(rig.files("c"))
    with contextlib.suppress(ConnectionError):
        assert run(ask(server, client, "b")) == b""
    assert logged(caplog).startswith(
        "the peer's certificate is of c.pdd.internal, not of a site known here; ours is b.pdd.in"
    )


def test_an_expired_client_is_refused_and_both_say_why(run, rig, caplog):
    server, client = rig.server(rig.files("b")), rig.client(rig.expired("a"))
    with pytest.raises(TlsRefused, match="the peer refused our certificate: it has expired; ours"):
        run(ask(server, client, "b"))
    assert logged(caplog).startswith("the peer's certificate has expired; ours is b.pdd.internal")


def test_an_expired_server_is_refused_and_both_say_why(run, rig, caplog):
    server, client = rig.server(rig.expired("b")), rig.client(rig.files("a"))
    with pytest.raises(TlsRefused, match=r"the peer's certificate has expired; ours is a\.pdd"):
        run(ask(server, client, "b"))
    assert logged(caplog).startswith("the peer refused our certificate: it has expired; ours is b.")


def test_who_speaks_no_tls_gets_nothing(run, rig, caplog):
    with contextlib.suppress(ConnectionError):
        assert run(ask(rig.server(rig.files("b")), None, "b")) == b""
    assert logged(caplog).startswith("the peer does not speak TLS; ours is b.pdd.internal")


def test_an_older_tls_is_refused(run, rig, caplog):
    old = rig.client(rig.files("a"))
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsRefused, match="the peer does not take our version of TLS"):
        run(ask(rig.server(rig.files("b")), old, "b"))
    assert logged(caplog).startswith("the peer speaks no TLS 1.3")


def test_who_tells_of_a_refusal_himself_hears_no_second_voice(rig, caplog):
    one = OneConnection(rig.server(rig.files("b")))
    assert one.refused is None
    with pytest.raises(ssl.SSLError):
        asyncio.run(ask(one, rig.bare(), "b"))
    assert str(one.refused).startswith("the peer showed no certificate")
    assert [r for r in caplog.records if r.name == "transport.tls"] == []


def test_the_system_is_not_trusted(rig):
    for context in (client_context(rig.files("a")), server_context(rig.files("a"))):
        assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_refusal_is_found_behind_what_wrapped_it():
    refused = TlsRefused("the peer has no certificate")
    lost, failed = ConnectionError("lost"), RuntimeError("failed")
    lost.__cause__, failed.__context__ = refused, lost
    assert refusal(failed) is refused
    assert refusal(ConnectionError("lost")) is None
    assert refusal(None) is None


# ------------------------------------------------------------------------------------------- files


def refused_files(files, site: str = "a") -> str:
    with pytest.raises(TlsError) as error:
        load_contexts(files, site, ["a", "b"])
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(f"{error.value.path}: ")
    return line.removeprefix(f"{error.value.path.parent}/")


def test_good_files_tell_who_they_are(rig):
    assert check_files(rig.files("a"), "a").startswith("a.pdd.internal of CN=pdd CA ")


def test_a_missing_file(rig):
    files = rig.files("a")
    files.key.unlink()
    assert refused_files(files) == "a.key: cannot be read: No such file or directory"


def test_a_folder_in_the_place_of_a_file(rig):
    files = rig.files("a")
    files.ca.unlink()
    files.ca.mkdir()
    assert refused_files(files) == "ca.pem: cannot be read: Is a directory"


def test_no_pem(rig):
    files = rig.files("a")
    good = files.key.read_bytes()
    files.key.write_text("-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n")
    assert refused_files(files) == "a.key: not a private key in PEM"
    files.key.write_bytes(good)
    files.cert.write_bytes(good)
    assert refused_files(files) == "a.pem: not a certificate in PEM"
    files.cert.write_bytes(b"\x00\xff" * 50)
    assert refused_files(files) == "a.pem: not a certificate in PEM"
    files.ca.write_bytes(b"")
    assert refused_files(files) == "ca.pem: not a certificate in PEM"


def test_a_key_of_another_certificate(rig):
    files, other = rig.files("a"), rig.files("a")
    files.key.write_bytes(other.key.read_bytes())
    line = refused_files(files)
    assert line == f"a.key: this key does not belong to the certificate {files.cert}"


def test_a_certificate_of_another_ca(rig):
    files = write(rig.folder, rig.ours, "a", rig.other.issue("a"))
    assert refused_files(files) == f"a.pem: it is of another CA than {files.ca}"


def test_expired_and_not_yet_valid_with_the_date(rig):
    assert refused_files(rig.expired("a")) == f"a.pem: expired on {NOW - DAY:%Y-%m-%d %H:%M} UTC"
    early = write(rig.folder, rig.ours, "a", rig.ours.issue("a", begins=NOW + DAY))
    assert refused_files(early) == (
        f"a.pem: not valid before {NOW + DAY:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
    )
    old = Authority(NOW - 400 * DAY)
    files = write(rig.folder, old, "a", old.issue("a", until=NOW + DAY))
    assert refused_files(files) == f"ca.pem: expired on {NOW - 35 * DAY:%Y-%m-%d %H:%M} UTC"


def test_a_certificate_of_another_site(rig):
    assert refused_files(rig.files("b")) == (
        "b.pem: it is not a certificate for site a: it needs the DNS name a.pdd.internal, "
        "it has b.pdd.internal"
    )
