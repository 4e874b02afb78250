"""Sites' stores of KV blocks in virtual time: the real tiers and decisions, another clock."""
