"""What the page of a sweep is made of."""
