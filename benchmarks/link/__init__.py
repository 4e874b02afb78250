"""KV over a packet-level long line, with iperf3 and Mooncake's transfer engine beside it."""
