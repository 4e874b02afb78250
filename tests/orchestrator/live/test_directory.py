"""What the directory says of the lines between sites, with a real emulator."""

import uvloop

from orchestrator.live.directory import Directory
from orchestrator.topology.schema import Topology
from transport.emulator.control import LineControl, start_emulator

TOPOLOGY = Topology.model_validate(
    {
        "model": "m",
        "sites": {
            "hami": {"pools": {"p": {"chip": "cpu", "roles": ["prefill"]}}},
            "kashgar": {"pools": {"p": {"chip": "cpu", "roles": ["prefill"]}}},
            "shenzhen": {"pools": {"q": {"chip": "cpu", "roles": ["main"]}}},
        },
        "links": [
            {"between": ["hami", "shenzhen"], "delay": 0.025, "bandwidth": 1e6, "emulate": True},
            {"between": ["kashgar", "shenzhen"], "delay": 0.04, "bandwidth": 1e6},
        ],
        "gateway": {"site": "shenzhen"},
    }
)
LINE = {"between": ["hami", "shenzhen"], "delay_s": 0.025, "rate_bytes_per_s": 1.25e5}


def test_an_emulated_line_is_told_with_the_port_that_changes_it() -> None:
    async def scenario() -> None:
        process, line = await start_emulator({"lines": [LINE]})
        assert process.stdin is not None
        try:
            directory = Directory(TOPOLOGY, line)
            address = directory.emulator("shenzhen", "hami")
            assert address is not None
            host, _, port = address.rpartition(":")
            assert host == "127.0.0.1"
            other = await LineControl.connect(int(port))
            await other.set("hami-shenzhen", rate_bytes_per_s=1000.0)
            directions = (await line.stats())["hami-shenzhen"]
            assert [d["rate_bytes_per_s"] for d in directions.values()] == [1000.0] * 2
            await other.close()
            assert directory.emulator("kashgar", "shenzhen") is None
            assert directory.emulator("hami", "hami") is None
            assert Directory(TOPOLOGY, None).emulator("hami", "shenzhen") is None
        finally:
            await line.close()
            process.stdin.close()
            await process.wait()

    uvloop.run(scenario())
