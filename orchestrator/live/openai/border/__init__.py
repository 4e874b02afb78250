"""What stands between any client and the endpoints: limits, keys, rates, ids."""
