"""The default engine: transformers' model code, attention over our paged KV pool."""
