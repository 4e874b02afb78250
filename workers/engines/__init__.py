"""Engines: what computes tokens. Each implements `workers.engines.base.Engine`."""
