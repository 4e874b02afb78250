"""A worker's KV in a site's stores, and the stores' own process."""
