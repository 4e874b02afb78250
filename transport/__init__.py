"""KV blocks from one worker to another: frames, codecs, streams, TCP, and the emulated line."""
