"""The pure core: one machine, one file per step of a request's life."""
