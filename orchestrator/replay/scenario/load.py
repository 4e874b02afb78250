"""Read a scenario file: all of its mistakes, or a Scenario."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import ValidationError

from orchestrator.catalogue import Catalogue, Chip, ModelFacts, load_catalogue
from orchestrator.errors import UserError
from orchestrator.replay.scenario.impossible import impossible
from orchestrator.replay.scenario.schema import CatalogueSection, Scenario, ScenarioFile
from orchestrator.topology.document import Document, read_document
from orchestrator.topology.load import load_topology, rule_mistakes
from orchestrator.topology.mistakes import Mistake, Path, TopologyError, unknown
from orchestrator.topology.packaged import packaged_scenario, packaged_topology
from orchestrator.topology.schema import Topology
from orchestrator.topology.strict import check

OTHERS = ("faults", "faults-stores")  # scenarios of other commands, in the same folder


Entry = TypeVar("Entry", Chip, ModelFacts)


def scenario_names() -> list[str]:
    """The scenarios that ship with the project."""
    return [name for name in _names("scenarios") if name not in OTHERS]


def find_scenario(name: str | FilePath) -> FilePath:
    """A file, or a scenario that ships with the project, by name. Raises UserError."""
    path = FilePath(name)
    if path.exists() or _is_path(str(name)):
        return path
    names = scenario_names()
    if str(name) not in names:
        raise UserError(f"{unknown('scenario', str(name), names)}; a file's name ends in .yaml")
    return packaged_scenario(str(name))


def load_scenario(name: str | FilePath) -> Scenario:
    """The scenario of a file or of a packaged name.

    Raises TopologyError with every mistake in the file, and in the topologies that it names.
    """
    path = find_scenario(name)
    document = read_document(path)
    elsewhere: list[Mistake] = []  # mistakes in other files
    catalogue = load_catalogue()
    if isinstance(document.data, dict):
        catalogue = _fill_catalogue(document, document.data, path.parent, elsewhere)
        for place in _topology_places(document.data):
            _fill_topology(document, place, catalogue, path.parent, elsewhere)
    loaded, mistakes = check(ScenarioFile, document)
    mistakes += elsewhere
    if not mistakes and loaded is not None:
        scenario = Scenario(name=path.stem, file=loaded, catalogue=catalogue, directory=path.parent)
        mistakes += [document.mistake(where, message) for where, message in impossible(scenario)]
        if not mistakes:
            return scenario
    raise TopologyError(mistake for mistake in mistakes if mistake.message)


# ------------------------------------------------------------------------ what the file refers to


def _topology_places(data: dict[str, Any]) -> Iterator[Path]:
    """Where a topology stands: the scenario's, and those of policies that bring their own."""
    if "topology" in data:
        yield ("topology",)
    policies = data.get("policies")
    for i, policy in enumerate(policies if isinstance(policies, list) else []):
        if isinstance(policy, dict) and policy.get("topology") is not None:
            yield ("policies", i, "topology")


def _fill_topology(
    document: Document,
    place: Path,
    catalogue: Catalogue,
    directory: FilePath,
    elsewhere: list[Mistake],
) -> None:
    """Put the topology that is named where its name stands, and note the rules it breaks."""
    holder: Any = document.data
    for part in place[:-1]:
        holder = holder[part]
    given = holder[place[-1]]
    if isinstance(given, dict):
        for where, message in rule_mistakes(given, directory, catalogue):
            document.mistakes.append(document.mistake((*place, *where), message))
    elif isinstance(given, str):
        try:
            holder[place[-1]] = _named_topology(given, catalogue, directory)
        except UserError as error:
            if isinstance(error, TopologyError):
                elsewhere += error.mistakes
            _spoil(document, place, "" if isinstance(error, TopologyError) else str(error))


def _named_topology(name: str, catalogue: Catalogue, directory: FilePath) -> Topology:
    if _is_path(name):
        return load_topology(directory / FilePath(name).expanduser(), catalogue)
    names = _names("topologies")
    if name not in names:
        raise UserError(f"{unknown('topology', name, names)}; a file's name ends in .yaml")
    return load_topology(packaged_topology(name), catalogue)


def _spoil(document: Document, place: Path, message: str) -> None:
    """Nothing more is said of this place; an empty message is not shown."""
    document.mistakes.append(document.mistake(place, message))


def _fill_catalogue(
    document: Document, data: dict[str, Any], directory: FilePath, elsewhere: list[Mistake]
) -> Catalogue:
    """The packaged catalogue with the figures of the scenario, or of the file that it names."""
    given = data.get("catalogue")
    if isinstance(given, str):
        other = read_document(directory / FilePath(given).expanduser())
        section = other.data
        _overlay(section)
        filled, mistakes = check(CatalogueSection, other)
        if filled is None or mistakes:
            elsewhere += mistakes
            _spoil(document, ("catalogue",), "")
        else:
            data["catalogue"] = filled
    else:
        section = given
        _overlay(section)
    known = load_catalogue()
    return Catalogue(
        chips=known.chips | _readable(section, "chips", Chip),
        models=known.models | _readable(section, "models", ModelFacts),
    )


def _overlay(section: object) -> None:
    """What a figure's entry does not say is as the packaged catalogue says."""
    known = load_catalogue()
    for key, entries in (("chips", known.chips), ("models", known.models)):
        given = section.get(key) if isinstance(section, dict) else None
        if not isinstance(given, dict):
            continue
        for name, raw in given.items():
            if name in entries and isinstance(raw, dict):
                told = entries[name].model_dump(mode="json", exclude_none=True)
                given[name] = told | raw


def _readable(section: object, key: str, model: type[Entry]) -> dict[str, Entry]:
    """The entries that can be read; the others are told of by the schema, but are known names."""
    given = section.get(key) if isinstance(section, dict) else None
    entries: dict[str, Entry] = {}
    for name, raw in given.items() if isinstance(given, dict) else ():
        try:
            entries[name] = model.model_validate(raw)
        except ValidationError:
            entries[name] = model.model_construct(name=name)
    return entries


# --------------------------------------------------------------------------------------- names


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _names(folder: str) -> list[str]:
    files = (resources.files("configs") / folder).iterdir()
    return sorted(FilePath(file.name).stem for file in files if file.name.endswith(".yaml"))
