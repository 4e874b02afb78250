"""The vLLM engine: a vLLM server computes, a pool in shared memory holds the KV."""
