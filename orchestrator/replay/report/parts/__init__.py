"""What the page is put together from; the scripts share one scope, in the order of `page.py`."""
