"""The orchestrator: topology, the pure core, the live runtime and the command line."""
