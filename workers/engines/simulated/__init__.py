"""The simulated engine: deterministic tokens and KV, modelled time, real block accounting."""
