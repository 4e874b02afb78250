"""What the gateway counts and times, as Prometheus metrics."""
