"""`pdd lab`: a long line on this machine, packet by packet, to try things on."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from orchestrator.cli.main import GOOD
from orchestrator.cli.output import Format, FormatOption
from orchestrator.errors import UserError
from orchestrator.topology.load import load_topology
from orchestrator.topology.units import (
    UnitError,
    parse_duration_s,
    parse_rate_bytes_per_s,
    show_rate,
)
from transport.lab.lab import End, Lab, LabError
from transport.lab.line import DirectionStats, LabLine

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_DELAY_S, _RATE_BYTES_PER_S = 0.025, 125e6  # 4000 km of fibre, 1 Gbps
_REPORT_S = 1.0
_POLL_S = 0.05
_LISTEN_S = 5.0  # how long the near command waits for the far one to listen
_LEAVE_S = 5.0  # how long the far command may take to end
_SIGNALLED = 128  # a shell's exit code for a command that a signal ended
_ORDERS = "cut, restore, or NAME VALUE with delay, rate, loss, jitter or buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The line's values as they were typed; None: not given."""

    delay: str | None = None
    rate: str | None = None
    loss: str | None = None
    jitter: str | None = None
    buffer: str | None = None


@app.command()
def lab(
    file: Annotated[
        Path | None, typer.Argument(help="A topology file to take the line's values from.")
    ] = None,
    link: Annotated[int, typer.Option(min=0, help="Which of the file's links.")] = 0,
    delay: Annotated[str | None, typer.Option(help="One way. Default: 25ms.")] = None,
    rate: Annotated[str | None, typer.Option(help="Each way. Default: 1Gbps.")] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets. Default: 0.")] = None,
    jitter: Annotated[str | None, typer.Option(help="Sigma of the delay. Default: 0ms.")] = None,
    buffer: Annotated[
        str | None, typer.Option(help="What the line sends in this time may wait. Default: 50ms.")
    ] = None,
    mtu: Annotated[int, typer.Option(help="Bytes of the largest packet.")] = 9000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed loses the same packets.")] = 0,
    near: Annotated[
        str | None,
        typer.Option(
            help="A shell command to run at the near end, once the far one listens; the lab ends "
            "with it, with its exit code. $PDD_NEAR and $PDD_FAR are the two addresses."
        ),
    ] = None,
    far: Annotated[str | None, typer.Option(help="One to run at the far end.")] = None,
    sysctl: Annotated[
        list[str] | None,
        typer.Option(help="net.NAME=VALUE to set at both ends; may be repeated."),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> None:
    """A line between two network namespaces, until Ctrl-C. Needs root.

    While it runs it takes orders on standard input: cut, restore, or a name and a value, such as
    loss 1e-3. With --near standard input is that command's.
    """
    # A shell that starts it in the background has it ignore Ctrl-C's signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = _Wanted(delay=delay, rate=rate, loss=loss, jitter=jitter, buffer=buffer)
    line = _changed(_base(file, link, mtu), wanted)
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(Lab(line, seed=seed))
        except (LabError, ValueError) as error:
            raise UserError(str(error)) from error
        _set_all(opened, sysctl or [])
        session = _Session(opened, output, has_commands=bool(near or far))
        session.begin()
        raise typer.Exit(session.run(near, far))


def _base(file: Path | None, link: int, mtu: int) -> LabLine:
    """The line before the options. Raises UserError, TopologyError."""
    values: dict[str, Any] = {"delay_s": _DELAY_S, "rate_bytes_per_s": _RATE_BYTES_PER_S}
    if file is not None:
        links = load_topology(file).links
        if link >= len(links):
            raise UserError(f"--link {link}: {file} has {len(links)}, counted from 0")
        for name in ("delay_s", "rate_bytes_per_s", "jitter_s", "loss"):
            values[name] = getattr(links[link], name)
    elif link:
        raise UserError(f"--link {link}: give the topology file whose link is meant")
    try:
        return LabLine(mtu=mtu, **values)
    except ValueError as error:
        raise UserError(str(error)) from error


def _changed(line: LabLine, wanted: _Wanted) -> LabLine:
    """The line with what was typed. The buffer is time: it follows the rate. Raises UserError."""
    values: dict[str, Any] = {}
    buffer_s = None if line.buffer_bytes is None else line.buffer_bytes / line.rate_bytes_per_s
    name = ""
    try:
        for name, text in asdict(wanted).items():
            match name, text:
                case _, None:
                    continue
                case "rate", _:
                    values["rate_bytes_per_s"] = parse_rate_bytes_per_s(text)
                case "loss", _:
                    values["loss"] = float(text)
                case "buffer", _:
                    buffer_s = parse_duration_s(text)
                case _:
                    values[f"{name}_s"] = parse_duration_s(text)
    except (UnitError, ValueError) as error:
        raise UserError(f"{name}: {error}") from error
    if buffer_s is not None:
        rate = values.get("rate_bytes_per_s", line.rate_bytes_per_s)
        values["buffer_bytes"] = int(buffer_s * rate)
    try:
        return replace(line, **values)
    except ValueError as error:
        raise UserError(str(error)) from error


def _set_all(opened: Lab, settings: list[str]) -> None:
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--sysctl {setting}: write it as NAME=VALUE")
        for end in (opened.near, opened.far):
            try:
                end.sysctl(name, value)
            except (OSError, ValueError) as error:
                raise UserError(f"--sysctl {setting}: {error}") from error


class _Session:
    """What `pdd lab` does while the line is there."""

    def __init__(self, opened: Lab, output: Format, *, has_commands: bool) -> None:
        self._lab = opened
        self._output = output
        # One of the two streams is the commands', the other ours.
        self._to_stderr = has_commands and output is Format.TEXT
        self._began = time.monotonic()
        self._at = self._began
        self._before = opened.stats()

    def begin(self) -> None:
        near, far, line = self._lab.near, self._lab.far, self._lab.line
        if self._output is Format.JSON:
            ends = {
                name: {"address": end.address, "enter": end.enter}
                for name, end in (("near", near), ("far", far))
            }
            self._tell_json({"line": line, **ends})
            return
        self._tell(
            f"near {near.address}, far {far.address}: {line.delay_s * 1e3:g} ms one way, "
            f"{show_rate(line.rate_bytes_per_s)}, loss {line.loss:g}, "
            f"jitter {line.jitter_s * 1e3:g} ms, "
            f"buffer {line.queue_limit_bytes / line.rate_bytes_per_s * 1e3:g} ms, mtu {line.mtu}"
        )
        self._tell(f"near: {near.enter} COMMAND")
        self._tell(f"far:  {far.enter} COMMAND")
        self._tell("Ctrl-C ends it, with all that runs at the ends")

    def run(self, near: str | None, far: str | None) -> int:
        """Until the near command ends, or Ctrl-C; the exit code."""
        far_process = self._start(self._lab.far, far, subprocess.DEVNULL) if far else None
        near_process = None
        if near:
            give_up = time.monotonic() + _LISTEN_S
            while far_process and far_process.poll() is None and time.monotonic() < give_up:
                if self._lab.far.listens():
                    break
                time.sleep(_POLL_S)
            near_process = self._start(self._lab.near, near, None)
        code = GOOD
        with contextlib.suppress(KeyboardInterrupt):  # the commands have got it too
            self._watch(near_process)
        if near_process is not None:
            code = near_process.wait()
        if far_process is not None:
            far_process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                far_process.wait(_LEAVE_S)
        return code if code >= 0 else _SIGNALLED - code

    def _start(self, end: End, command: str, stdin: int | None) -> subprocess.Popen[Any]:
        addresses = {"PDD_NEAR": self._lab.near.address, "PDD_FAR": self._lab.far.address}
        stdout = sys.stderr if self._output is Format.JSON else None
        return end.exec(
            ["/bin/sh", "-c", command], stdin=stdin, stdout=stdout, env=os.environ | addresses
        )

    def _watch(self, near: subprocess.Popen[Any] | None) -> None:
        """A report every second, and the orders that come."""
        orders = near is None
        while near is None or near.poll() is None:
            left = self._at + _REPORT_S - time.monotonic()
            if left <= 0:
                self._report()
            elif near is not None:
                time.sleep(min(left, _POLL_S))
            elif orders and select.select([0], [], [], left)[0]:
                text = os.read(0, 4096).decode(errors="replace")
                orders = bool(text)
                for order in text.splitlines():
                    self._obey(order.split())
            elif not orders:
                time.sleep(left)

    def _obey(self, order: list[str]) -> None:
        try:
            match order:
                case []:
                    return
                case ["cut"]:
                    self._lab.cut()
                case ["restore"]:
                    self._lab.restore()
                case ["delay" | "rate" | "loss" | "jitter" | "buffer" as name, *value] if value:
                    line = _changed(self._lab.line, _Wanted(**{name: " ".join(value)}))
                    self._lab.set(**asdict(line))
                case _:
                    raise UserError(f"{' '.join(order)!r}: {_ORDERS}")
        except (UserError, ValueError) as error:
            print(error, file=sys.stderr, flush=True)

    def _report(self) -> None:
        stats, now = self._lab.stats(), time.monotonic()
        seconds, before = now - self._at, self._before
        if self._output is Format.JSON:
            self._tell_json({"at_s": now - self._began, **asdict(stats)})
        else:
            there = _direction(stats.near_to_far, before.near_to_far, seconds)
            back = _direction(stats.far_to_near, before.far_to_near, seconds)
            busy = (stats.cpu_s - before.cpu_s) / seconds
            self._tell(f"near > far {there} | far > near {back} | shuttle {busy:.0%} of a core")
        self._at, self._before = now, stats

    def _tell(self, text: str) -> None:
        print(text, file=sys.stderr if self._to_stderr else sys.stdout, flush=True)

    def _tell_json(self, value: dict[str, Any]) -> None:
        print(orjson.dumps(value).decode(), flush=True)


def _direction(now: DirectionStats, before: DirectionStats, seconds: float) -> str:
    mbps = (now.nbytes - before.nbytes) * 8e-6 / seconds
    text = f"{mbps:7.1f} Mbps, {now.queue_bytes / 1e6:5.2f} MB wait, {now.lost} lost"
    for count, why in ((now.no_room, "no room"), (now.cut, "cut"), (now.refused, "refused")):
        if count:
            text += f", {count} {why}"
    return text
