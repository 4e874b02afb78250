"""Plans of scenarios, told as a page."""
