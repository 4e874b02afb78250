"""Random trouble for a virtual deployment, from a seed: what to do to it, and what must hold."""
