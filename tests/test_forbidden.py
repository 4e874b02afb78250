"""What no code of ours does: run text as code, read data that can run code, hand a shell a line."""

import ast
from collections.abc import Iterator

import pytest

from tests.test_rooms import SOURCES

CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
    "yaml.load",
    "yaml.unsafe_load",
    "torch.load",
    "ssl._create_unverified_context",
}
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "jsonpickle", "marshal", "shelve", "joblib"}
SAFE_YAML = {"safe"}
# Where one of these is right, and why.
ALLOWED = {
    ("workers.api.record", "exec"): "an __init__ of a class's own field names, as dataclass makes",
    ("benchmarks.mutants.mutant", "compile"): "our own sources with one rule broken",
}


def found(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is forbidden in a module, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from ((name, node.lineno) for name in names if name.split(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            yield from ((what, node.lineno) for what in _called(node))
        if isinstance(node, ast.Attribute) and node.attr == "CERT_NONE":
            yield "CERT_NONE", node.lineno


def _called(node: ast.Call) -> Iterator[str]:
    name, options = ast.unparse(node.func), {k.arg: k.value for k in node.keywords}
    if name in CALLS:
        yield name
    for option, good in (("shell", False), ("allow_pickle", False), ("trust_remote_code", False)):
        value = options.get(option)
        if value is not None and not (isinstance(value, ast.Constant) and value.value is good):
            yield f"{option}={ast.unparse(value)}"
    if option_of(options, "verify") is False:
        yield "verify=False"
    if name.split(".")[-1] == "YAML" and option_of(options, "typ") not in SAFE_YAML:
        yield f"YAML without typ={SAFE_YAML}"


def option_of(options: dict[str | None, ast.expr], name: str) -> object:
    """The value of a keyword argument where it is a constant; else None."""
    value = options.get(name)
    return value.value if isinstance(value, ast.Constant) else None


def test_nothing_that_runs_text_or_trusts_data() -> None:
    wrong = [
        f"{module}:{line}: {what}"
        for module, path in SOURCES.items()
        for what, line in found(ast.parse(path.read_text(encoding="utf-8")))
        if (module, what) not in ALLOWED
    ]
    assert wrong == []


def test_what_is_allowed_is_there() -> None:
    """An exception that nobody needs any more must go."""
    for module, what in ALLOWED:
        assert what in dict(found(ast.parse(SOURCES[module].read_text(encoding="utf-8")))), module


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import pickle", "pickle"),
        ("from cloudpickle import loads", "cloudpickle"),
        ("eval(text)", "eval"),
        ("import os\nos.system(line)", "os.system"),
        ("subprocess.run(line, shell=True)", "shell=True"),
        ("YAML().load(text)", "YAML without typ={'safe'}"),
        ("yaml.load(text)", "yaml.load"),
        ("httpx.get(url, verify=False)", "verify=False"),
        ("context.verify_mode = ssl.CERT_NONE", "CERT_NONE"),
        ("np.load(path, allow_pickle=True)", "allow_pickle=True"),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", "trust_remote_code=True"),
    ],
)
def test_each_would_be_seen(source: str, what: str) -> None:
    assert what in dict(found(ast.parse(source)))


def secrets_compared(tree: ast.AST) -> Iterator[int]:
    """Lines that compare something named as a secret by `==` or `in`, in time that tells of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            sides = [ast.unparse(side).lower() for side in (node.left, *node.comparators)]
            if any(_secret(side) for side in sides):
                yield node.lineno


def _secret(text: str) -> bool:
    last = text.rpartition(".")[2]
    return any(word in last for word in ("secret", "digest", "authorization", "api_key"))


def test_secrets_are_compared_in_constant_time() -> None:
    wrong = [
        f"{module}:{line}"
        for module, path in SOURCES.items()
        for line in secrets_compared(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wrong == []
    comparing = {
        module
        for module, path in SOURCES.items()
        if not module.startswith("benchmarks.")
        and "hmac.compare_digest(" in path.read_text(encoding="utf-8")
    }
    assert comparing == {
        "orchestrator.live.openai.border.door",
        "transport.stream.handshake",
        "workers.service.app",
        "workers.tiers.wire",
    }


def test_a_plain_comparison_would_be_seen() -> None:
    assert list(secrets_compared(ast.parse("if given == self._secret: pass"))) == [1]
