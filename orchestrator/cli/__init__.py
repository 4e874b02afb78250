"""The command line: one file per command, each with a Typer `app`."""
