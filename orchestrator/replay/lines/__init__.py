"""How KV shares a line between two sites."""
