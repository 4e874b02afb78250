"""One file per claim; each is run by `pdd bench NAME`."""
