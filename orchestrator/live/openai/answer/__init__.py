"""An answer on its way to the client: from the core's actions to bytes on the connection."""
