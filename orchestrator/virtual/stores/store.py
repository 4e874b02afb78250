"""A store's process in virtual time: real tiers in memory, which it reads again from its "files".

What stands in files is a copy that outlives the process. Its network is the site's own: questions
take a moment, blocks come at a rate, and whoever asks waits for as long as that takes.
"""

from dataclasses import dataclass
from random import Random

from orchestrator.virtual.process import ClockError, Process
from orchestrator.virtual.schedule import Schedule
from workers.tiers.blocks import Block
from workers.tiers.store import BlockStore, StoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """The store of a pool, named site/pool/store. `files`: what is in it outlives a restart.

    `answer_s`: a question's way there and back. `bytes_per_s`: how fast blocks come; so slow that
    what they cost shows beside virtual workers' prefill.
    """

    site: str
    pool: str
    memory_bytes: int = 1 << 16
    policy: str = "lru"
    files: bool = True
    answer_s: float = 0.002
    bytes_per_s: float = 1e6

    @property
    def name(self) -> str:
        return f"{self.site}/{self.pool}/store"


class VirtualStore:
    """What `workers.storage.process` is to a real site; `boot` begins a life.

    `late_s` is added to every answer, as faults want it.
    """

    def __init__(self, spec: StoreSpec, schedule: Schedule) -> None:
        self.spec = spec
        self.process = Process(spec.name, spec.site, schedule, ClockError())
        self.late_s = 0.0
        self._filed: dict[bytes, tuple[str, Block]] = {}

    def boot(self) -> None:
        self.process.start()
        spec = self.spec
        self.blocks = BlockStore(StoreConfig(memory_bytes=spec.memory_bytes, policy=spec.policy))
        for key, (tenant, block) in self._filed.items():
            self.blocks.put(tenant, [(key, block)])

    def put(self, tenant: str, blocks: list[tuple[bytes, Block]]) -> None:
        """Take blocks in, as the real one does; its files are as large as its memory."""
        self.blocks.put(tenant, blocks)
        if self.spec.files:
            self._filed.update((key, (tenant, block)) for key, block in blocks)
            there = self.blocks.find(list(self._filed), to_save=True)
            gone = [key for key, tier in zip(self._filed, there, strict=True) if tier is None]
            for key in gone:
                del self._filed[key]

    def damage(self, random: Random, share: float) -> None:
        """One bit of each block turns over, with this chance, behind the store's back."""
        held = self.blocks._blocks
        for key, block in list(held.items()):
            if random.random() < share:
                data = bytearray(block.data)
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                held[key] = Block(bytes(data), block.crc)
