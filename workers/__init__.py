"""Workers: one engine, one KV pool and the legs placed on them."""

from compiled.finder import install

install()
