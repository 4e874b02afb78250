"""What the doctor says of TCP: this kernel's, asked over loopback, and others' as given."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.doctor.finding import Finding, State
from orchestrator.doctor.tcp import Connection, Kernel, probe, read_kernel, tcp_findings
from transport.tcp.sockets import CONGESTION, UNSENT_BYTES

CAP_NET_ADMIN = 12
MIB = 1 << 20

KERNEL = Kernel(
    available="reno bbr cubic",
    allowed="reno cubic",
    rmem=(4096, 131072, 6 * MIB),
    wmem=(4096, 16384, 4 * MIB),
    rmem_max=212992,
    wmem_max=212992,
    slow_start_after_idle=True,
    window_scaling=True,
)
GOT = Connection(
    congestion="bbr",
    send_bytes=87040,
    receive_bytes=131072,
    nodelay=True,
    unsent_bytes=UNSENT_BYTES,
    keepalive=(30, 10, 3),
    forced_bytes=None,
)


def found(check: str, kernel: Kernel = KERNEL, got: Connection = GOT) -> Finding:
    return next(f for f in tcp_findings(kernel, got) if f.check == check)


def test_a_connection_of_this_kernels() -> None:
    kernel = read_kernel()
    got = probe(kernel)
    assert got.congestion in (kernel.available or got.congestion).split()
    assert (got.nodelay, got.unsent_bytes, got.keepalive) == (True, UNSENT_BYTES, (30, 10, 3))
    assert got.send_bytes >= kernel.wmem[0]
    assert got.receive_bytes >= kernel.rmem[0]
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    capabilities = int(status.split("CapEff:")[1].split()[0], 16)
    if not capabilities >> CAP_NET_ADMIN & 1:
        assert got.forced_bytes is None
    elif got.forced_bytes is not None:  # in a user namespace the capability is not enough
        assert got.forced_bytes > max(kernel.wmem[2], kernel.rmem[2])
    assert found("socket options", kernel, got).state is State.OK


def test_settings_are_read_and_may_be_hidden(tmp_path: Path) -> None:
    for name, text in {
        "ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "ipv4/tcp_wmem": "4096\t16384\t4194304\n",
        "ipv4/tcp_available_congestion_control": "reno cubic\n",
        "ipv4/tcp_window_scaling": "0\n",
        "core/wmem_max": "212992\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_kernel(tmp_path) == Kernel(
        available="reno cubic",
        allowed=None,
        rmem=(4096, 131072, 6291456),
        wmem=(4096, 16384, 4194304),
        rmem_max=None,
        wmem_max=212992,
        slow_start_after_idle=False,
        window_scaling=False,
    )


def test_the_congestion_control_it_got() -> None:
    assert found("congestion control").state is State.OK
    cubic = replace(GOT, congestion="cubic")
    not_allowed = found("congestion control", got=cubic)
    assert not_allowed.state is State.WARN
    assert "tcp_allowed_congestion_control='reno cubic bbr'" in (not_allowed.advice or "")
    absent = found("congestion control", replace(KERNEL, available="reno cubic"), cubic)
    assert (absent.advice or "").startswith(f"modprobe tcp_{CONGESTION}: ")


def test_a_window_that_falls_when_idle() -> None:
    cubic = replace(GOT, congestion="cubic")
    assert found("slow start after idle").state is State.OK  # BBR does not heed it
    assert found("slow start after idle", got=cubic).state is State.WARN
    off = replace(KERNEL, slow_start_after_idle=False)
    assert found("slow start after idle", off, cubic).state is State.OK


def test_without_window_scaling_nothing_will_do() -> None:
    assert found("window scaling").state is State.OK
    assert found("window scaling", replace(KERNEL, window_scaling=False)).state is State.FAIL


@pytest.mark.parametrize("lost", [{"nodelay": False}, {"unsent_bytes": 1}, {"keepalive": None}])
def test_an_option_that_was_not_taken(lost: dict[str, object]) -> None:
    assert found("socket options").state is State.OK
    assert found("socket options", got=replace(GOT, **lost)).state is State.WARN


def test_buffers() -> None:
    assert found("SO_SNDBUF").value == "85 KiB when new, grows to 4 MiB (tcp_wmem)"
    assert found("SO_RCVBUF").value == "128 KiB when new, grows to 6 MiB (tcp_rmem)"
    assert "CAP_NET_ADMIN" in found("buffers by force").value
    forced = replace(GOT, forced_bytes=14 * MIB)
    assert "14 MiB was given" in found("buffers by force", got=forced).value
