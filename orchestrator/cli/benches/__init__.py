"""One file per benchmark: the options of `pdd bench NAME`, and its result for people."""
