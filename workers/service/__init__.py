"""A worker's process: its engine thread, HTTP front, token streams and KV in and out."""
