"""What is shown of a sweep: break-even, tables, JSON and a page."""
