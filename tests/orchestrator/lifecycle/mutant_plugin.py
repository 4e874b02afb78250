"""A pytest plugin: break the core before anything imports it."""

from tests.orchestrator.lifecycle.mutants import install

install()
