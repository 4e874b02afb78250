"""What the page of a plan is made of."""
