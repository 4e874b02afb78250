"""Tools and formats: how the model is told of them, held to them, and read."""
