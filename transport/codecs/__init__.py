"""How a slice is coded for the wire: one table of named, versioned codecs."""
