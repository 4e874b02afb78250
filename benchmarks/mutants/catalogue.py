"""All mutants, by name."""

from dataclasses import replace

from benchmarks.mutants.choices import CHOICES
from benchmarks.mutants.core import CORE
from benchmarks.mutants.exceptions import EXCEPTIONS
from benchmarks.mutants.membership import MEMBERSHIP
from benchmarks.mutants.transport import TRANSPORT
from benchmarks.mutants.worker import WORKER

GATEWAY = (*CORE, *CHOICES)
_ALL = (*GATEWAY, *WORKER, *TRANSPORT, *MEMBERSHIP)
MUTANTS = {m.name: replace(m, exempt=EXCEPTIONS.get(m.name, m.exempt)) for m in _ALL}
