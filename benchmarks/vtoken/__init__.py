"""What packing the survivors of eviction gives back, against waiting for whole blocks."""
