"""KV streams over TCP: the sockets around the machines of `transport.stream`."""
