"""What keeping the keys that TriAttention names costs and gains, on the default model."""
