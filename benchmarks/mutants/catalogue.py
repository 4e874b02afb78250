"""All mutants, by name."""

from benchmarks.mutants.core import CORE
from benchmarks.mutants.membership import MEMBERSHIP
from benchmarks.mutants.transport import TRANSPORT
from benchmarks.mutants.worker import WORKER

MUTANTS = {mutant.name: mutant for mutant in (*CORE, *WORKER, *TRANSPORT, *MEMBERSHIP)}
