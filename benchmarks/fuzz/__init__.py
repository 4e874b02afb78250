"""Inputs that nobody in his right mind would send, by the million: `pdd bench fuzz`."""
