"""Replay: the serving machine and its policies over modelled workers and lines, fast."""
