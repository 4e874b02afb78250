"""The one exception that means: you asked for something that cannot be, and here is why."""


class UserError(Exception):
    """A user's mistake. The text is shown as it is, without a traceback; the exit code is 2."""
