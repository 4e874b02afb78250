"""The KV of virtual workers: the transport's own machines over virtual connections."""
