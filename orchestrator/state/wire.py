"""Events, actions and the core's configuration as JSON, on the machinery of the workers' messages.

`encode_*` gives a dict that orjson writes as it is, `decode_*` reads it back, strictly. A float
survives to its last bit as long as it is finite; what cannot be read is a `WireError`, one line
that names the field.
"""

from typing import Any, get_args

from orchestrator.state.actions import Action, Emit, Fail, Finish, Send
from orchestrator.state.config import CoreConfig
from orchestrator.state.events import (
    Arrived,
    ClientGone,
    Event,
    Heard,
    LinkTold,
    Reconnected,
    RolesTold,
    StoreHolds,
    Ticked,
    WorkerDraining,
    WorkerLost,
    WorkerReturned,
    WorkerUp,
)
from workers.api.wire import Wire

EVENTS: dict[str, type] = {
    "arrived": Arrived,
    "gone": ClientGone,
    "heard": Heard,
    "up": WorkerUp,
    "lost": WorkerLost,
    "draining": WorkerDraining,
    "returned": WorkerReturned,
    "roles": RolesTold,
    "reconnected": Reconnected,
    "link": LinkTold,
    "store": StoreHolds,
    "tick": Ticked,
}
ACTIONS: dict[str, type] = {"send": Send, "emit": Emit, "finish": Finish, "fail": Fail}

_EVENTS = Wire(EVENTS, "an event")
_ACTIONS = Wire(ACTIONS, "an action")
_CONFIG = Wire({"config": CoreConfig}, "a configuration")


def encode_event(event: Event) -> dict[str, Any]:
    """The event as an object with a `kind`."""
    return _EVENTS.encode(event)


def decode_event(body: Any) -> Event:
    """The event that `body` holds. Raises WireError."""
    event: Event = _EVENTS.decode(body, get_args(Event))
    return event


def encode_action(action: Action) -> dict[str, Any]:
    """The action as an object with a `kind`."""
    return _ACTIONS.encode(action)


def decode_action(body: Any) -> Action:
    """The action that `body` holds. Raises WireError."""
    action: Action = _ACTIONS.decode(body, get_args(Action))
    return action


def encode_config(config: CoreConfig) -> dict[str, Any]:
    """The configuration as an object."""
    return _CONFIG.encode(config)


def decode_config(body: Any) -> CoreConfig:
    """The configuration that `body` holds. Raises WireError."""
    config: CoreConfig = _CONFIG.decode(body, (CoreConfig,))
    return config
