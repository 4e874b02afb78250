"""What the HTTP surface needs from the gateway's driver."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from orchestrator.state.actions import Emit, Fail, Finish
from orchestrator.state.events import Arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The one model that is served. `created`: Unix seconds; `stop_ids`: end-of-text tokens."""

    name: str
    max_context: int
    vocab_size: int
    created: int
    stop_ids: tuple[int, ...]


class Tokenizer(Protocol):
    """The part of a fast transformers tokenizer that is used here."""

    chat_template: Any  # a template, several by name, or None

    @property
    def backend_tokenizer(self) -> Backend: ...
    @property
    def special_tokens_map(self) -> dict[str, Any]: ...


# Told of a request's actions: Emit any number of times, then one Finish or Fail. It is called in
# the loop's thread, must not raise and must not call the service.
Told = Callable[[Emit | Finish | Fail], None]


class Service(Protocol):
    """The driver as the HTTP surface sees it."""

    @property
    def model(self) -> ModelCard: ...
    @property
    def tokenizer(self) -> Tokenizer: ...

    def ready(self) -> str | None:
        """None: requests can be served now; else why not, in words for the client."""

    def submit(self, arrived: Arrived, told: Told, trace: str | None = None) -> None:
        """Begin the request; `told` may be called before this returns.

        `trace`: the traceparent that its client gave.
        """

    def route(self, request: str) -> str | None:
        """The route that was chosen for it; None: none yet, or it has ended."""

    def leave(self, request: str) -> None:
        """Cancel the request on every leg; harmless once it has ended."""

    def new_request_id(self) -> str:
        """An id no other request of any gateway has."""

    def status(self) -> dict[str, Any]:
        """What `pdd status` shows, as JSON values."""
