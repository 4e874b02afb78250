"""The core compiled ahead of time: which modules, how they are built, when they are used."""
