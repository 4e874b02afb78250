"""Nouns of the pure core: events, actions, views of workers and links."""
