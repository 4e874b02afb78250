"""Workers: one engine, one KV pool and the legs placed on them."""
