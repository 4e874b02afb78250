"""A YAML file as plain data, with the line and column of everything in it."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner, ScannerError

from orchestrator.topology.mistakes import Mistake, Path, TopologyError, path_text

Position = tuple[int, int]  # line and column, from 1

TAG = "tag:yaml.org,2002:"
MOST_BYTES = 1 << 20
MOST_DEPTH = 100
MOST_VALUES = 1 << 17  # with every alias written out, as its readers see it


@dataclass(slots=True)
class Document:
    """One file: `data` is its content, `mistakes` what reading it already found."""

    file: str
    data: object
    root: Node
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, path: Path, message: str, *, at_key: bool = False) -> Mistake:
        """A mistake at the value of `path`, or at its key; at the nearest parent if absent."""
        line, column = self._position(path, at_key)
        return Mistake(self.file, line, column, path_text(path), message)

    def _position(self, path: Path, at_key: bool) -> Position:
        node, key_at, found = self.root, None, True
        for part in path:
            child = _child(node, part)
            if child is None:
                found = False
                break
            node, key_at = child
        # A block starts on the line after its key, and a value that is not there nowhere at all.
        empty = isinstance(node, ScalarNode) and not node.value
        elsewhere = empty or (isinstance(node, CollectionNode) and not node.flow_style)
        if key_at is not None and (at_key or elsewhere or not found):
            return key_at
        return _start(node)


def read_document(path: FilePath) -> Document:
    """Read a file; raises TopologyError when it is not a YAML document at all."""
    file = str(path)
    try:
        with path.open("rb") as content:
            data = content.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            message = f"larger than {MOST_BYTES} bytes"
            raise TopologyError([Mistake(file, 1, 1, "", message)])
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError([Mistake(file, 1, 1, "", f"not UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise TopologyError([Mistake(file, 1, 1, "", f"cannot be read: {reason}")]) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            yaml = YAML(typ="safe", pure=True)
            yaml.Scanner = _Scanner
            root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = str(error.problem or error.context)
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        message = f"not YAML: {' '.join(problem.split())}"
        raise TopologyError([Mistake(file, line, column, "", message)]) from None
    except YAMLError as error:
        message = f"not YAML: {' '.join(str(error).split())}"
        raise TopologyError([Mistake(file, 1, 1, "", message)]) from None
    except RecursionError:
        raise TopologyError([Mistake(file, 1, 1, "", "nested too deeply")]) from None
    except Exception as error:  # ruamel's own readers stumble over odd directives, tags and escapes
        message = f"not YAML that can be read ({type(error).__name__})"
        raise TopologyError([Mistake(file, 1, 1, "", message)]) from None
    if root is None:
        raise TopologyError([Mistake(file, 1, 1, "", "empty: there is nothing in it")])
    document = Document(file=file, data=None, root=root)
    reader = _Reader(document)
    document.data = reader.read(root, ())
    if reader.size(root) > MOST_VALUES:
        message = f"with its aliases it holds more than {MOST_VALUES} values"
        raise TopologyError([Mistake(file, 1, 1, "", message)])
    return document


class _Scanner(Scanner):
    """Gives up at a depth that no file of ours has: deeper ones cost it the square of their depth,
    and its callers Python's stack.
    """

    def fetch_flow_collection_start(self, token_class: Any, to_push: str) -> None:
        self._check_depth()
        super().fetch_flow_collection_start(token_class, to_push)

    def add_indent(self, column: int) -> bool:
        self._check_depth()
        added: bool = super().add_indent(column)
        return added

    def _check_depth(self) -> None:
        if len(self.flow_context) + len(self.indents) > MOST_DEPTH:
            raise ScannerError(None, None, "nested too deeply", self.reader.get_mark())


class _Reader:
    """Turns nodes into data once each, so that aliases cost nothing, and notes what is wrong."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, object] = {}
        self._sizes: dict[int, int] = {}  # of what is known, every alias written out
        self._open: set[int] = set()

    def read(self, node: Node, path: Path) -> object:
        if id(node) in self._known:
            return self._known[id(node)]
        if id(node) in self._open:
            self._note(node, path, "an alias cannot be inside what it stands for")
            return None
        self._open.add(id(node))
        data: object
        if isinstance(node, MappingNode):
            data = self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            data = [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
        else:
            data = self._scalar(node, path)
        self._open.discard(id(node))
        self._known[id(node)] = data
        self._sizes[id(node)] = 1 + sum(self.size(part) for part in _parts(node))
        return data

    def size(self, node: Node) -> int:
        """How many values a node that was read stands for."""
        return self._sizes.get(id(node), 1)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        data: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line, _ = _start(key_node)
            if not isinstance(key_node, ScalarNode) or str(key_node.tag) != f"{TAG}str":
                key = key_node.value if isinstance(key_node, ScalarNode) else "a collection"
                self._note(key_node, path, f"keys must be text, got {key}; quote it")
            elif key_node.value in data:
                key = key_node.value
                message = f"this key is here twice, first in line {lines[key]}"
                self._note(key_node, (*path, key), message)
            else:
                lines[key_node.value] = line
                data[key_node.value] = self.read(value_node, (*path, key_node.value))
        return data

    def _scalar(self, node: Node, path: Path) -> object:
        tag, text = str(node.tag).removeprefix(TAG), str(node.value)
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return text.lower() in ("true", "yes", "on")  # the latter two only in YAML 1.1
            if tag == "int":
                return int(text.replace("_", ""), 10 if text.lstrip("+-0").isdecimal() else 0)
            if tag == "float":
                return float(
                    text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan")
                )
        except ValueError:
            self._note(node, path, f"{text[:40]!r} is not a number that can be read")
            return None
        if tag not in ("str", "timestamp"):
            self._note(node, path, f"YAML tags are not supported here, got {node.tag}")
        return text

    def _note(self, node: Node, path: Path, message: str) -> None:
        line, column = _start(node)
        document = self._document
        document.mistakes.append(Mistake(document.file, line, column, path_text(path), message))


def _parts(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [value for _, value in node.value]
    return node.value if isinstance(node, SequenceNode) else []


def _start(node: Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _child(node: Node, part: str | int) -> tuple[Node, Position | None] | None:
    """The child node at a key or list position, and where its key is."""
    if isinstance(node, SequenceNode) and isinstance(part, int):
        return (node.value[part], None) if part < len(node.value) else None
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, _start(key)
    return None
