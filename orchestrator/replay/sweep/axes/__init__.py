"""What a sweep goes over: its parameters, and how an axis is written."""
