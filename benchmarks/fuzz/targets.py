"""Every place that is fuzzed here. Frames of KV have a fuzzer beside their tests (`make fuzz`)."""

from benchmarks.fuzz.bodies import Bodies
from benchmarks.fuzz.campaign import Target
from benchmarks.fuzz.control import Leases, Orderly, Stores, Streams, Workers
from benchmarks.fuzz.files import Traces, Yaml

TARGETS = {
    target.name: target
    for target in (
        Target("bodies", Bodies),
        Target("workers", Workers),
        Target("streams", Streams),
        Target("leases", Leases),
        Target("orders", Orderly),
        Target("stores", Stores),
        Target("yaml", Yaml),
        Target("traces", Traces),
    )
}
