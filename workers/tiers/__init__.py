"""Where KV goes that an engine has no room for: memory, then files, shared by a site's workers."""
