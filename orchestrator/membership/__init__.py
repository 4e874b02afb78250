"""Who is there: workers, their streams and messages, sites and their leases. Pure, as the core."""
