"""The live runtime: sockets, clocks and processes around the pure core."""
