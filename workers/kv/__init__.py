"""The KV memory of one worker."""
