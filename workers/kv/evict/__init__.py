"""Which tokens of a sequence are kept: budgets, policies, scores."""
