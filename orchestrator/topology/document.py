"""A YAML file as plain data, with the line and column of everything in it."""

from dataclasses import dataclass, field
from pathlib import Path as FilePath

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from orchestrator.topology.mistakes import Mistake, Path, TopologyError, path_text

Position = tuple[int, int]  # line and column, from 1

TAG = "tag:yaml.org,2002:"


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
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError([Mistake(file, 1, 1, "", f"not UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise TopologyError([Mistake(file, 1, 1, "", f"cannot be read: {reason}")]) from None
    try:
        root = YAML(typ="safe", pure=True).compose(text)
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
    if root is None:
        raise TopologyError([Mistake(file, 1, 1, "", "empty: there is nothing in it")])
    document = Document(file=file, data=None, root=root)
    document.data = _Reader(document).read(root, ())
    return document


class _Reader:
    """Turns nodes into data once each, so that aliases cost nothing, and notes what is wrong."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, object] = {}
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
        return data

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
