"""The connector: vLLM's KV in and out of the worker's pools. Named in --kv-transfer-config:

    {"kv_connector": "PddConnector", "kv_role": "kv_both",
     "kv_connector_module_path": "workers.engines.vllm.inside.connector",
     "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"pools": FOLDER}}

A request takes part whose `kv_transfer_params` have a "pdd" (see `plan.Run`); for all others every
hook returns at once.
"""

from pathlib import Path
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.model_executor.models.utils import extract_layer_index

from workers.engines.vllm.inside.checks import check_config, check_version
from workers.engines.vllm.inside.copier import CachedLayer, Copier
from workers.engines.vllm.inside.layouts import views_of
from workers.engines.vllm.inside.plan import Copy, Run
from workers.engines.vllm.pool import SharedPool

UNTESTED = "allow_untested"  # in kv_connector_extra_config
POOLS = "pools"

log = init_logger(__name__)


class Copies(KVConnectorMetadata):
    """A step's copies, from the scheduler to the ranks."""

    def __init__(self, loads: list[Copy], saves: list[Copy]) -> None:
        self.loads = loads
        self.saves = saves


class PddConnector(KVConnectorBase_V1, SupportsHMA):
    """See the module's docstring; the working out is in `plan`, the copying in `copier`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config
        check_version(vllm.__version__, config.get_from_extra_config(UNTESTED, False))
        folder = config.get_from_extra_config(POOLS, None)
        if not folder:
            raise ValueError(f"kv_connector_extra_config needs {POOLS!r}, the folder of the pools")
        self._folder = Path(folder)
        check_config(vllm_config, kv_cache_config)
        self._groups = kv_cache_config.kv_cache_groups
        self._sizes = [group.kv_cache_spec.block_size for group in self._groups]
        # The scheduler's side.
        self._runs: dict[str, Run] = {}
        self._loads: list[Copy] = []
        # A rank's side.
        self._copier: Copier | None = None

    # ------------------------------------------------------------ the scheduler's side

    def on_new_request(self, request: Any) -> None:
        params = (request.kv_transfer_params or {}).get("pdd")
        if params is None:
            return
        try:
            self._runs[request.request_id] = Run.of(params)
        except (KeyError, TypeError, ValueError) as error:
            log.error("request %s: its pdd parameters are unusable: %r", request.request_id, error)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        run = self._runs.get(request.request_id)
        if run is None:
            return 0, False
        return run.loadable(request.num_tokens, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        run = self._runs.get(request.request_id)
        if run is None or num_external_tokens == 0:
            return
        stop = min(run.have, request.num_tokens - 1)
        tables = blocks.get_block_ids()
        self._loads.append(run.load(stop - num_external_tokens, stop, tables, self._sizes))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        loads, self._loads = self._loads, []
        saves = []
        if self._runs:
            tables = scheduler_output.kv_connector_block_state
            for request_id, computed in self._computed_after(scheduler_output):
                run = self._runs.get(request_id)
                if run is None or run.have >= computed:
                    continue
                copy = run.save(computed, tables.get_block_ids(request_id), self._sizes)
                if copy is not None:
                    saves.append(copy)
        return Copies(loads, saves)

    @staticmethod
    def _computed_after(scheduler_output: Any) -> list[tuple[str, int]]:
        """Every request of the step, and its leading tokens whose KV is there after it."""
        scheduled = scheduler_output.num_scheduled_tokens
        cached = scheduler_output.scheduled_cached_reqs
        before = [
            (new.req_id, new.num_computed_tokens) for new in scheduler_output.scheduled_new_reqs
        ]
        before += zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        return [(name, computed + scheduled[name]) for name, computed in before]

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._runs.pop(request.request_id, None)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # what is in the pool is in the pool, whatever happens to the request

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # `save_kv_layer` is Python between the layers

    # ------------------------------------------------------------ a rank's side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        parallel = self._vllm_config.parallel_config
        group_of = {
            name: number for number, group in enumerate(self._groups) for name in group.layer_names
        }
        layers = {
            name: CachedLayer(
                extract_layer_index(name),
                group_of[name],
                cache,
                views_of(name, cache, self._isa(name)),
            )
            for name, cache in kv_caches.items()
        }
        self._copier = Copier(
            lambda name: SharedPool.open(self._folder, name),
            layers,
            self._sizes,
            rank=get_tensor_model_parallel_rank(),
            ranks=parallel.tensor_parallel_size,
        )

    def _isa(self, layer: str) -> str | None:
        """What the CPU's attention of a layer was built for; None: it runs elsewhere."""
        if self._vllm_config.device_config.device_type != "cpu":
            return None
        return str(self._vllm_config.compilation_config.static_forward_context[layer].isa)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Copies)
        assert self._copier is not None
        if connector_metadata.loads or connector_metadata.saves:
            self._copier.begin(connector_metadata.loads, connector_metadata.saves)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._copier is not None
        self._copier.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are done before the step's forward pass."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        copier = self._copier
        if copier is not None and copier.saving:
            copier.save(layer_name)

    def wait_for_save(self) -> None:
        if self._copier is not None:
            self._copier.finish()

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        if self._copier is not None:
            self._copier.end()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """For vLLM to compute again. It does not take the ids of several groups, whose blocks are
        in no prefix cache: there only the run itself, which nobody wants any more, is wrong.
        """
        failed = set() if self._copier is None else self._copier.take_failed_blocks()
        return failed if len(self._groups) == 1 else set()
