"""The gateway's OpenAI-compatible HTTP surface; the driver stands behind `Service`."""
