"""All mutants, by name."""

from benchmarks.mutants.membership import MEMBERSHIP
from benchmarks.mutants.transport import TRANSPORT
from benchmarks.mutants.worker import WORKER

MUTANTS = {mutant.name: mutant for mutant in (*WORKER, *TRANSPORT, *MEMBERSHIP)}
