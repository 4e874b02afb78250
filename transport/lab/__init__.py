"""A long line on one machine, packet by packet: two network namespaces and a shuttle between."""
