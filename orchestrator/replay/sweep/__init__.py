"""Sweeps: a scenario over a grid of what could be otherwise, and where the far site pays."""
