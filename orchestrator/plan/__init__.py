"""Which pool plays which role: a programme over integer assignments and path flows. Pure."""
