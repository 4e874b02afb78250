"""A whole deployment in virtual time: the real core, real worker cores, modelled time and line."""
