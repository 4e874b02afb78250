"""`pdd init`: a topology that starts, certificates that work, and everything it refuses."""

import json
import stat
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.live.startable import check_startable
from orchestrator.topology.load import load_topology
from transport.tls import TlsFiles, check_files

TOPOLOGY = """\
model: smollm2-135m
sites:
  hami: {pools: {all: {chip: cpu, roles: [prefill, relay]}}}
  shenzhen: {pools: {all: {chip: cpu, roles: [main]}}}
links:
  - {between: [hami, shenzhen], distance_km: 4000, bandwidth: 20Gbps}
gateway: {site: shenzhen}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    return file


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line a mistake gets."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.strip()


def test_what_it_prints_makes_the_file_use_them(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = file.parent / "certs"
    assert run(["init", str(file), "--certs", str(folder)]) == 0
    out = capsys.readouterr().out
    names = ["ca.pem", "ca.key", "hami.pem", "hami.key", "shenzhen.pem", "shenzhen.key"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for name in names:
        assert f"wrote {folder / name}\n" in out
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        assert (mode == 0o600) == name.endswith(".key")
        assert not mode & 0o022, "nobody else may write it"
    assert f"whoever has {folder / 'ca.key'} can make more" in out
    lines = out[out.index("security:\n") :]
    assert '    cert: "certs/{site}.pem"\n' in lines, "relative to the file, so both can move"
    file.write_text(TOPOLOGY + lines)
    tls = load_topology(file).security.tls
    assert tls is not None
    for site in ("hami", "shenzhen"):
        assert check_files(tls.files(site), site).startswith(f"{site}.pdd.internal of CN=pdd CA ")


def test_a_file_that_names_certificates_which_are_not_there_yet(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = "{ca: certs/ca.pem, cert: 'certs/{site}.pem', key: 'certs/{site}.key'}"
    file.write_text(TOPOLOGY + f"security: {{tls: {tls}}}\n")
    assert run(["validate", str(file)]) == 2
    assert run(["init", str(file), "--certs", str(file.parent / "certs")]) == 0
    capsys.readouterr()
    assert run(["validate", str(file)]) == 0


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "certs"
    assert run(["init", "--certs", str(folder), "--sites", "a, B_1", "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["sites"] == {"a": "a.pdd.internal", "B_1": "b_1.pdd.internal"}
    assert made["tls"] == {
        "ca": str(folder / "ca.pem"),
        "cert": str(folder / "{site}.pem"),
        "key": str(folder / "{site}.key"),
    }
    assert set(map(Path, made["files"])) == set(folder.iterdir())
    assert made["valid_until"].endswith("+00:00")
    for site in made["sites"]:
        files = {key: Path(path.replace("{site}", site)) for key, path in made["tls"].items()}
        check_files(TlsFiles(**files), site)


def test_two_runs_are_two_authorities(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run(["init", "--certs", str(tmp_path / name), "--sites", "a"]) == 0
    one, two = ((tmp_path / name / "a.pem").read_bytes() for name in ("one", "two"))
    assert one != two


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "b.pem", "b.key"])
def test_nothing_is_overwritten_and_nothing_written_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("mine")
    assert run(["init", "--certs", str(tmp_path), "--sites", "a,b"]) == 2
    assert told(capsys) == (
        f"--certs: {tmp_path / name} is there already; remove it or name another folder"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


BAD = {
    "a file that is there": ([], "topology.yaml is there already; name another, or --certs for"),
    "sites of a file that is there": (
        ["topology.yaml", "--certs", "certs", "--sites", "a"],
        "--sites: topology.yaml is there already, and names its sites",
    ),
    "a file that cannot be": (["topology.yaml/x.yaml"], "cannot write topology.yaml: File exists"),
    "a bad name": (
        ["--certs", "certs", "--sites", "a,../b"],
        "--sites: the name '../b' may only have letters, digits, - and _ (at most 40)",
    ),
    "no name": (
        ["--certs", "certs", "--sites", "a,,b"],
        "--sites: the name '' may only have letters, digits, - and _ (at most 40)",
    ),
    "the CA's name": (["--certs", "certs", "--sites", "CA"], "--sites: a site cannot be called"),
    "twice": (["--certs", "certs", "--sites", "a,b,A"], "--sites: 'a' and 'A' differ only in case"),
    "the same twice": (["--certs", "certs", "--sites", "a,b,a"], "--sites: 'a' is there twice"),
    "a folder that cannot be": (
        ["--certs", "topology.yaml/certs", "--sites", "a"],
        "--certs: cannot write topology.yaml/certs: Not a directory",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(file.parent)
    arguments, line = BAD[name]
    assert run(["init", *arguments]) == 2
    assert told(capsys).startswith(line)
    assert not Path("certs").exists()


@pytest.mark.parametrize("sites", ["a", "hami,shenzhen", "a,b,C_3"])
def test_a_topology_to_start_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], sites: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--sites", sites]) == 0
    assert capsys.readouterr().out == "wrote topology.yaml\nnext: pdd serve\n"
    assert run(["validate", "topology.yaml"]) == 0
    topology = load_topology("topology.yaml")
    assert list(topology.sites) == sites.split(",")
    assert topology.security.tls is None
    check_startable(topology)


def test_a_topology_with_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", "deploy/my.yaml", "--certs", "deploy/certs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote deploy/my.yaml\nwrote deploy/certs/ca.pem\n")
    assert out.endswith("next: pdd serve deploy/my.yaml\n")
    assert 'ca: "certs/ca.pem"' in Path("deploy/my.yaml").read_text(), "both can move"
    tls = load_topology("deploy/my.yaml").security.tls
    assert tls is not None
    for site in ("hami", "shenzhen"):
        check_files(tls.files(site), site)


@pytest.mark.parametrize("text", ["model: x\n", "sites: {}\n", "sites: [a]\n", "- a\n"])
def test_a_file_without_sites(file: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file.write_text(text)
    assert run(["init", str(file), "--certs", str(file.parent / "certs")]) == 2
    assert told(capsys).startswith(f"{file}: sites: there are none; pdd validate {file} says more")
