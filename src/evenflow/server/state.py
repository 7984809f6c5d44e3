"""What all requests to the server share: the model once it is there, the limits, the way in.

Lives on the event loop's thread. Knows no path and no HTTP.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from evenflow.errors import EngineClosedError, QueueFullError
from evenflow.server.faults import NotFoundError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.config import EngineConfig
    from evenflow.engine import Engine
    from evenflow.server.bridge import Bridge
    from evenflow.server.metrics import Metrics
    from evenflow.server.settings import Settings
    from evenflow.server.steps import StepFeed
    from evenflow.text.tokenizer import Tokenizer

MAX_RETRY_AFTER_S = 60


class Model(Protocol):
    """What the server needs of an `LLM`."""

    @property
    def engine(self) -> Engine:
        """Runs the requests."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        ...

    @property
    def config(self) -> EngineConfig:
        """The effective options."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> str:
        """A conversation as the model reads it."""
        ...


class ServerState:
    """The server's state.

    Args:
        settings: what the server was told.
        metrics: counts what happens.
        feed: the records of steps, for whoever watches.
        wall_clock: seconds since 1970.
        new_id: makes a name that no other request has.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        feed: StepFeed,
        *,
        wall_clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.feed = feed
        self.wall_clock = wall_clock
        self.new_id = new_id
        self.started_s = int(wall_clock())
        self.is_draining = False
        self._model: Model | None = None
        self._bridge: Bridge | None = None

    def attach(self, model: Model, bridge: Bridge) -> None:
        """The model is there: from now on requests are served."""
        self._model = model
        self._bridge = bridge
        model.engine.observe(self.metrics)
        model.engine.observe(self.feed)

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names of the model."""
        names = self.settings.served_model_names
        return names or (() if self._model is None else (self._model.config.model,))

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return 0 if self._bridge is None else self._bridge.num_open

    def ready(self) -> tuple[Model, Bridge]:
        """The model and the way to it.

        Raises:
            NotReadyError: it is not there yet, or the server stops.
            EngineClosedError: the engine has died.
        """
        if self.is_draining:
            raise NotReadyError("the server stops", hint="send the request to another one")
        return self.loaded()

    def loaded(self) -> tuple[Model, Bridge]:
        """As `ready`, also while the server drains."""
        if self._model is None or self._bridge is None:
            raise NotReadyError("the model is being loaded", hint="try again in a moment")
        failure = self._model.engine.failure
        if failure is not None:
            raise EngineClosedError(
                f"the engine has died: {type(failure).__name__}",
                hint="the server's log says why; restart it",
            )
        return self._model, self._bridge

    def end(self) -> None:
        """Stop at once: every open request gets its last event, every watcher its end."""
        self.is_draining = True
        self.feed.is_closed = True
        if self._bridge is not None:
            self._bridge.cancel_all()

    def check_name(self, name: str | None) -> str:
        """The model's name for the answer.

        Raises:
            NotFoundError: there is no model of that name here.
        """
        names = self.served_names
        if name is None or name in names:
            return name or names[0]
        raise NotFoundError(
            f"there is no model {name!r} here", hint=f"this server has {', '.join(names)}"
        )

    def admit(self, num_prompts: int) -> None:
        """Let so many requests in, or refuse all of them.

        Raises:
            QueueFullError: more would wait than may.
        """
        model, _ = self.loaded()
        limit = self.settings.max_num_queued_reqs
        seats = model.config.max_num_seqs
        waiting = self.metrics.num_waiting
        if self.num_open + num_prompts > seats + limit or (limit and waiting >= limit):
            self.metrics.count_refusal()
            raise QueueFullError(
                f"{waiting:,} requests wait and {self.num_open:,} are open; {limit:,} may wait "
                f"for {seats:,} seats, and this needs {num_prompts:,} more",
                hint="try again after the time in Retry-After",
            )

    def retry_after_s(self) -> int:
        """How long until the queue has moved on, by how fast requests ended lately."""
        per_s = self.metrics.finished_per_s()
        if not per_s:
            return 1
        return max(1, min(MAX_RETRY_AFTER_S, math.ceil(self.metrics.num_waiting / per_s)))
