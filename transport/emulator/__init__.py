"""A long line between two sites, emulated by a process that forwards TCP connections."""
