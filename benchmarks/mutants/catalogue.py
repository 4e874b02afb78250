"""All mutants, by name."""

from benchmarks.mutants.choices import CHOICES
from benchmarks.mutants.core import CORE
from benchmarks.mutants.membership import MEMBERSHIP
from benchmarks.mutants.transport import TRANSPORT
from benchmarks.mutants.worker import WORKER

GATEWAY = (*CORE, *CHOICES)
MUTANTS = {mutant.name: mutant for mutant in (*GATEWAY, *WORKER, *TRANSPORT, *MEMBERSHIP)}
