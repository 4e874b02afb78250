"""Sites' stores of KV blocks in a replay: the real ledgers and choices, blocks without bytes."""
