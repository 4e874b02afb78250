"""What is asked of a replayed deployment: traces that were recorded, and generated ones."""
