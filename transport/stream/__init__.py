"""The KV protocol without I/O: frames, and the two ends as pure machines."""
