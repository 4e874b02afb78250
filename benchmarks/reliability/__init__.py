"""Whether the running service keeps its promises: under faults, under too much load, for long."""
