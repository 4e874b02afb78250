"""What a worker's streams carry, without I/O: KV out, KV in, answers that are told again."""
