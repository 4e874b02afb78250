"""What every engine with a paged KV pool keeps of its sequences."""
