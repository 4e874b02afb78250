"""Builds the compiled core in place: `python -m compiled.build`, a few minutes.

Needs mypy, which brings mypyc, and a C compiler. The sources that are compiled, and all of ours
that those import, are copied and written out (see `expand`); what the C compiler makes of them
takes the place of the last build at the very end.
"""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from json import dumps
from pathlib import Path

from compiled.expand import expand
from compiled.finder import BUILT, GROUP, MANIFEST, ROOT, digest
from compiled.rooms import MODULES, OPEN

OURS = ("orchestrator", "workers", "transport", "compiled")
# Sums come out alike, to the last bit, where the processor can multiply and add in one.
EXACT = "-ffp-contract=off"
OPTIONS = (
    "--config-file=",
    "--python-version=3.11",
    "--explicit-package-bases",
    "--no-site-packages",  # what is not ours is `Any`
    "--ignore-missing-imports",
    "--follow-imports=silent",
)


class BuildFailed(Exception):
    """What is missing or was refused; the text says which."""


def build(root: Path = ROOT, built: Path = BUILT, modules: Sequence[str] = MODULES) -> None:
    """Compile `modules` of the checkout at `root` into `built`. Raises BuildFailed."""
    work = built.with_name(f"{built.name}.work")
    shutil.rmtree(built, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    sources = {name: (root / name).read_bytes() for name in sorted(closure(root, modules))}
    paths = [source_path(module) for module in modules]
    for name, source in sources.items():
        to = work / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(source)
    for path in paths:
        text = expand(sources[path].decode(), OPEN)
        (work / path).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "compiled.build", "--in", str(work), *paths]
    done = subprocess.run(command, cwd=root, check=False)
    if done.returncode:
        raise BuildFailed(f"the compiler's word is above; what it was given is in {work}")
    manifest = {"modules": modules, "sources": {n: digest(s) for n, s in sources.items()}}
    (work / "lib" / MANIFEST).write_text(dumps(manifest, indent=1), encoding="utf-8")
    (work / "lib").rename(built)
    shutil.rmtree(work)


def closure(root: Path, modules: Iterable[str]) -> set[str]:
    """The sources of these modules, and of all of ours that they import, at any remove."""
    found: set[str] = set()
    new = [*modules, "compiled.build", "compiled.records"]
    while new:
        module = new.pop()
        path = next((p for p in source_paths(module) if (root / p).is_file()), None)
        if path is None or path in found:
            continue
        found.add(path)
        parts = module.split(".")
        new += [".".join(parts[:n]) for n in range(1, len(parts))]
        for node in ast.walk(ast.parse((root / path).read_bytes())):
            if isinstance(node, ast.Import):
                new += [alias.name for alias in node.names if alias.name.startswith(OURS)]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
                new += [str(node.module), *(f"{node.module}.{a.name}" for a in node.names)]
    return found


def source_path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def source_paths(module: str) -> tuple[str, str]:
    """Where a module may lie: as a file, or as a package."""
    return source_path(module), source_path(f"{module}.__init__")


def compile_in(work: Path, paths: Sequence[str]) -> None:
    """Compile the files at `paths` of `work` into `work/lib`. SystemExit if mypy refuses one."""
    try:
        from distutils.ccompiler import new_compiler  # noqa: PLC0415
        from distutils.sysconfig import customize_compiler  # noqa: PLC0415

        from mypyc.build import mypycify  # noqa: PLC0415
    except ImportError as error:
        raise BuildFailed(f"{error}: pip install '.[dev]'") from None
    os.chdir(work)
    name = GROUP.removesuffix("__mypyc")
    extensions = mypycify(
        [*OPTIONS, *paths], group_name=name, multi_file=True, opt_level="2", debug_level="0"
    )
    compiler = new_compiler()
    customize_compiler(compiler)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for extension in extensions:
            include = [*extension.include_dirs, sysconfig.get_path("include")]
            flags = [*extension.extra_compile_args, EXACT]

            def made(source: str, include: list[str] = include, flags: list[str] = flags) -> str:
                return compiler.compile([source], include_dirs=include, extra_postargs=flags)[0]

            library = extension.name.replace(".", "/") + sysconfig.get_config_var("EXT_SUFFIX")
            objects = list(pool.map(made, extension.sources))
            compiler.link_shared_object(objects, f"lib/{library}")


def main(arguments: Sequence[str]) -> int:
    """Without arguments: build. With `--in`: as `build` calls it, in a process of its own."""
    try:
        if arguments[:1] == ["--in"]:
            compile_in(Path(arguments[1]), arguments[2:])
        else:
            build()
    except BuildFailed as error:
        print(f"compiled.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
