"""The orchestrator: topology, the pure core, the live runtime and the command line."""

from compiled.finder import install

install()
