"""What one assignment can serve: its linear programme, its queues, and the bound on all of them."""
