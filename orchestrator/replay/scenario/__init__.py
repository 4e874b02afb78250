"""A scenario file: a deployment, what is asked of it, what happens to it, and what it costs."""
