"""The loop: plan, run, commit, emit; and the two ways in, submit and cancel.

One thread owns the scheduler and the runner. Callers on other threads leave commands in an inbox;
nobody waits for a step to get something in, and no lock is held while a step runs. Out go the
events of a step, one call per sink and step, on the engine's thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from evenflow.choices import Groups, each_choice
from evenflow.errors import EngineClosedError, EvenflowError, InvalidRequestError, RunnerError
from evenflow.journal import Journal, Observer
from evenflow.schedule.request import Request
from evenflow.text.detokenizer import Detokenizer
from evenflow.types import StreamEvent, TokenEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.config import EngineConfig
    from evenflow.runner.interface import Runner, StepHandle
    from evenflow.sampling import SamplingParams
    from evenflow.schedule.options import SchedulerStats
    from evenflow.schedule.scheduler import Scheduler
    from evenflow.text.tokenizer import Tokenizer
    from evenflow.types import FinishReason, StepPlan

log = logging.getLogger("evenflow")

# Takes the events of one step, in order; called on the engine's thread, so it must be quick and
# must not raise.
Sink = Callable[[list[StreamEvent]], object]


class _Live(NamedTuple):
    """A request that has not ended, which choice it is, and where its text goes."""

    request: Request
    index: int  # type: ignore[assignment]  # hides tuple.index
    push: Callable[[int], tuple[str, bool]]
    flush: Callable[[], str]
    sink: Sink


class _Add(NamedTuple):
    """The command to queue a request, or all choices of one."""

    name: str
    lives: list[_Live]
    arrival_s: float


class _Flight(NamedTuple):
    """A plan that a runner is working on."""

    plan: StepPlan
    handle: StepHandle
    cached: list[int]
    start_s: float


class Engine:
    """Runs requests until they end.

    Every request that `submit` accepted ends in exactly one event with a `finish_reason`, whatever
    happens to the engine.

    Args:
        config: the resolved options.
        scheduler: owned by the engine from now on.
        runner: owned by the engine from now on; `close` closes it.
        tokenizer: for text, stop strings and the model's end tokens.
        clock: seconds; only differences count.
        observers: get a record of every step and request.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._journal = Journal(scheduler, observers)
        self._live: dict[str, _Live] = {}
        self._groups = Groups()
        self._in_flight: list[_Flight] = []
        self._inbox: queue.SimpleQueue[_Add | Callable[[], None]] = queue.SimpleQueue()
        self._door = threading.Lock()  # closed, or still letting requests in
        self._closed = False
        self._stopping = False
        self._num_requests = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="evenflow-engine", daemon=True)
        self._thread.start()

    # -- ways in: any thread ----------------------------------------------------------------

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        sink: Sink,
        *,
        request_id: str | None = None,
    ) -> str:
        """Queue a request; its events go to `sink`.

        With `params.n` > 1 every choice is a request of its own, with its own events and its own
        end: choice i of "name" has the id "name-i". They share the blocks of the prompt.

        Returns:
            The request's id, without a choice's number.

        Raises:
            InvalidRequestError: the prompt is empty, too long for the context or the KV pool, or
                holds ids that the model does not have; a schema or grammar that is not sound.
            EngineClosedError: the engine was closed, or has died.
        """
        ids = list(prompt_token_ids)
        max_tokens = self.check(ids, params)
        bad_words = self._bad_words(params)
        form = params.structured_outputs
        masks = None if form is None else self.tokenizer.compile(form)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.tokenizer.eos_ids
        with self._door:
            if self._closed:
                raise self._why_closed()
            number = self._num_requests
            self._num_requests += params.n
            name = request_id if request_id is not None else f"req-{number}"
            lives = []
            for index, each in enumerate(each_choice(params, number, self.config.seed)):
                request = Request(
                    name if params.n == 1 else f"{name}-{index}",
                    ids,
                    each,
                    max_tokens=max_tokens,
                    stop_ids=stop_ids,
                    bad_words=bad_words,
                    masks=masks if masks is None or index == 0 else masks.copy(),
                )
                if index == 0:
                    self._scheduler.check_fits(request)
                lives.append(self._open(request, index, sink))
            self._inbox.put(_Add(name, lives, self._clock()))
        return name

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """The token ids of each bad word: as a text begins with it, and after a space."""
        if not params.bad_words:
            return ()
        encode = self.tokenizer.encode
        words = (word.lstrip(" ") for word in params.bad_words)
        spellings = (text for word in words for text in (word, f" {word}"))
        found = (tuple(encode(text, add_special_tokens=False)) for text in spellings)
        return tuple(dict.fromkeys(ids for ids in found if ids))

    def cancel(self, request_id: str) -> None:
        """End a request soon, with finish_reason "abort"; nothing happens if it has ended.

        The id that `submit` returned ends all choices; a choice's own id ends that one.
        """
        self._inbox.put(lambda: self._cancel(request_id))

    def observe(self, observer: Observer) -> None:
        """Send the records of all later steps and requests to one more observer.

        Raises:
            EngineClosedError: there will be no later ones.
        """
        with self._door:
            if self._closed:
                raise self._why_closed()
            self._inbox.put(lambda: self._journal.add_observer(observer))

    def stats(self) -> SchedulerStats:
        """Counts of this moment, from any thread; one step may change several of them between."""
        return self._scheduler.stats()

    def close(self) -> None:
        """End every open request with "abort", stop the thread and close the runner."""
        with self._door:
            self._closed = True
        self._inbox.put(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _why_closed(self) -> EngineClosedError:
        if self.failure is not None:
            return EngineClosedError(
                f"the engine has died: {self.failure}", hint="see the log, then start it again"
            )
        return EngineClosedError("the engine is closed", hint="make a new one")

    def check(self, ids: Sequence[int], params: SamplingParams) -> int:
        """Check a prompt; returns max_tokens, resolved against the context."""
        room = self.config.max_model_len - len(ids)
        if not ids:
            raise InvalidRequestError("the prompt is empty", hint="send at least one token")
        if room < 1:
            raise InvalidRequestError(
                f"the prompt has {len(ids):,} tokens, but this model's context holds "
                f"{self.config.max_model_len:,} with at least one for the answer",
                hint="shorten the prompt, raise max_model_len, or pick a model with a longer one",
            )
        size = self.tokenizer.vocab_size
        for token in (*ids, *params.stop_token_ids, *(params.logit_bias or ())):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                raise InvalidRequestError(
                    f"token id {token!r} is not in the vocabulary",
                    hint=f"ids are whole numbers from 0 to {size - 1:,}",
                )
        for name in ("logprobs", "prompt_logprobs"):
            wanted, most = getattr(params, name) or 0, min(self.config.max_logprobs, size)
            if wanted > most:
                raise InvalidRequestError(
                    f"{name} is {wanted:,}, but at most {most:,} are reported (max_logprobs)",
                    hint=f"ask for at most {most}, or start the engine with a larger max_logprobs",
                )
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _open(self, request: Request, index: int, sink: Sink) -> _Live:
        params = request.params
        detokenizer = Detokenizer(
            self.tokenizer,
            stop=params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
        )
        return _Live(request, index, detokenizer.push, detokenizer.flush, sink)

    # -- the loop: the engine's thread ------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                self._step()
        except BaseException as error:  # nobody may be left waiting, whatever it was
            self.failure = error
            log.critical("the engine has died", exc_info=error)
        with self._door:
            self._closed = True
        self._end_everything()
        self._runner.close()

    def _step(self) -> None:
        """Plan, run, commit, emit."""
        while len(self._in_flight) < self.config.plan_depth:
            plan = self._scheduler.plan()
            if plan is None:
                break
            start_s = self._clock()
            cached = self._journal.plan(plan, start_s)
            handle = self._runner.submit(plan)
            self._in_flight.append(_Flight(plan, handle, cached, start_s))
        if not self._in_flight:
            if self._scheduler.has_unfinished:
                raise RuntimeError(f"nothing to compute, but {len(self._live)} requests are open")
            return
        plan, handle, cached, start_s = self._in_flight.pop(0)
        errors: Mapping[str, EvenflowError] = {}
        try:
            result = handle.result()
        except RunnerError as error:
            errors = dict.fromkeys((span.request.id for span in plan.spans), error)
            events = self._scheduler.fail(plan.serial)
        else:
            if result.failed:
                errors = {plan.spans[i].request.id: e for i, e in result.failed.items()}
            events = self._scheduler.commit(result)
        now_s = self._clock()
        self._emit(events, now_s, errors)
        self._journal.step(plan, cached, start_s, now_s)

    def _emit(
        self, events: list[TokenEvent], now_s: float, errors: Mapping[str, EvenflowError]
    ) -> None:
        """Turn a step's tokens into text and hand them out, one call per sink."""
        outs: dict[Sink, list[StreamEvent]] = {}
        for request_id, token, logprobs, finish in events:
            live = self._live.get(request_id)
            if live is None:
                continue  # a stop string ended it in the middle of the step's run of tokens
            request, index, push, flush, sink = live
            text = ""
            scores = cached = None
            if token >= 0:
                cached = self._journal.token(request_id, now_s)
                if request.prompt_logprobs is not None:
                    scores = request.take_prompt_logprobs()
                if finish != "stop" or request.params.include_stop_str_in_output:
                    text, stopped = push(token)
                    if stopped and finish is None:
                        self._scheduler.cancel(request_id, "stop")
                    if stopped:
                        finish = "stop"  # noqa: PLW2901 - the text decides
            error = None
            if finish is not None:
                text += flush()
                error = errors.get(request_id)
                del self._live[request_id]
                self._groups.end(request_id)
                self._journal.end(request, finish, now_s)
            outs.setdefault(sink, []).append(
                StreamEvent(request_id, token, text, logprobs, finish, error, index, scores, cached)
            )
        for sink, stream_events in outs.items():
            sink(stream_events)

    def _take_commands(self) -> None:
        """Carry out what callers left; wait for the first when there is nothing else to do."""
        idle = not self._scheduler.has_unfinished
        while not self._stopping:
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return
            if isinstance(command, _Add):
                self._add(*command)
            else:
                command()
            idle = False

    def _stop(self) -> None:
        self._stopping = True

    def _add(self, name: str, lives: list[_Live], arrival_s: float) -> None:
        for live in lives:
            request = live.request
            try:
                self._scheduler.add(request)
            except EvenflowError as error:  # an id that is in use
                end = StreamEvent(request.id, -1, "", None, "error", error, live.index)
                live.sink([end])
                continue
            self._live[request.id] = live
            self._journal.arrive(request, arrival_s)
            if len(lives) > 1:
                self._groups.add(name, request.id)

    def _cancel(self, request_id: str) -> None:
        cancelled = map(self._scheduler.cancel, self._groups.ids(request_id))
        ends = [end for end in cancelled if end is not None]
        if ends:
            self._emit(ends, self._clock(), {})

    def _end_everything(self) -> None:
        """Give every open request its terminal event; the scheduler may be in any state."""
        now_s = self._clock()
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, _Add):
                for live in command.lives:
                    self._live[live.request.id] = live
                    self._journal.arrive(live.request, command.arrival_s)
        died = self.failure is not None
        reason: FinishReason = "error" if died else "abort"
        errors = dict.fromkeys(self._live, self._why_closed()) if died else {}
        ends = [TokenEvent(request_id, -1, None, reason) for request_id in self._live]
        self._emit(ends, now_s, errors)
