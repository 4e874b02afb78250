"""What runs inside vLLM's processes: the connector and the sampler.

Of this project it imports only what needs no more than numpy and torch, which vLLM has.
"""
