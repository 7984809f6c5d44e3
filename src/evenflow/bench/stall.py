"""The stall experiment: streams are generating, and one long prompt lands among them.

In: an engine and a shape. Out: the records of what happened, untouched; what they mean is
`stall_report.py`'s business. The long prompt lands once every stream has its first `lead_tokens`,
so the experiment does not depend on how fast the machine is.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import ConfigError
from evenflow.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.engine import Engine
    from evenflow.text.tokenizer import Tokenizer
    from evenflow.trace import RequestRecord, StepRecord
    from evenflow.types import StreamEvent

LONG_ID = "long"
TAIL_TOKENS = 8  # what a stream still has to do once the long prompt should be through


class StallShape(NamedTuple):
    """How large the experiment is; everything in tokens but the number of streams."""

    num_streams: int
    stream_prompt_tokens: int
    lead_tokens: int  # each stream has so many when the long prompt lands
    long_tokens: int
    long_output_tokens: int
    budget: int  # max_num_batched_tokens of the chunked run

    @property
    def stream_tokens(self) -> int:
        """Tokens per stream that outlast the prefill: one per step, and one step per chunk."""
        room = self.budget - self.num_streams
        return self.lead_tokens + -(-self.long_tokens // room) + TAIL_TOKENS

    def options(self, *, chunked: bool) -> dict[str, object]:
        """The engine options of one run; everything else stays at its default."""
        per_stream = self.stream_prompt_tokens + self.stream_tokens
        longest = max(self.long_tokens + self.long_output_tokens, per_stream)
        block = 64  # every runner takes it
        blocks = -(-longest // block) + self.num_streams * (-(-per_stream // block) + 1)
        options: dict[str, object] = {
            "max_model_len": longest,
            "max_num_seqs": self.num_streams + 1,
            "num_kv_blocks": blocks,
            "block_size": block,
            "enable_chunked_prefill": chunked,
        }
        return {**options, "max_num_batched_tokens": self.budget} if chunked else options


class StallPrompts(NamedTuple):
    """Token ids of the streams' prompts and of the long one."""

    streams: list[list[int]]
    long: list[int]


class Progress(NamedTuple):
    """How far a run is."""

    stream_tokens: int  # of all streams together
    long_tokens: int  # positions of the long prompt that are computed
    landed: bool


@dataclass(slots=True)
class Recorder:
    """An observer that keeps every record."""

    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Keep a step."""
        self.steps.append(record)

    def request(self, record: RequestRecord) -> None:
        """Keep a request."""
        self.requests.append(record)


class StallRun(NamedTuple):
    """What happened in one run; `tokens` by request id."""

    chunked: bool
    config: dict[str, object]
    steps: list[StepRecord]
    streams: list[RequestRecord]
    long: RequestRecord
    tokens: dict[str, list[int]]


def check_shape(shape: StallShape, context_length: int) -> None:
    """Refuse a shape that cannot show anything.

    Raises:
        ConfigError: no room for chunks beside the streams, or more than the model's context.
    """
    if shape.budget < 2 * shape.num_streams:
        raise ConfigError(
            f"a step of {shape.budget} tokens has no room for chunks beside "
            f"{shape.num_streams} streams",
            hint=f"give it at least {2 * shape.num_streams} tokens, or run fewer streams",
        )
    most = shape.long_tokens + shape.long_output_tokens
    if most > context_length:
        raise ConfigError(
            f"the long prompt and its answer have {most:,} tokens, but the model's context holds "
            f"{context_length:,}",
            hint=f"ask for a long prompt of at most {context_length - shape.long_output_tokens:,}",
        )


def real_prompts(tokenizer: Tokenizer, shape: StallShape) -> StallPrompts:
    """Prompts cut from the text that every Python carries about itself.

    Raises:
        ConfigError: this interpreter's text is too short for the shape.
    """
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte, needed here alone
    except ImportError as e:
        raise ConfigError(
            "this Python was packaged without its documentation (pydoc_data)",
            hint="install the distribution's full Python, or run the demo with another",
        ) from e
    by_length = sorted(topics, key=lambda name: (-len(topics[name]), name))
    long: list[int] = []
    taken = 0
    while len(long) < shape.long_tokens and taken < len(by_length):
        long += tokenizer.encode(topics[by_length[taken]])
        taken += 1
    streams: list[list[int]] = []
    for name in by_length[taken:]:
        ids = tokenizer.encode(topics[name])
        if len(streams) < shape.num_streams and len(ids) >= shape.stream_prompt_tokens:
            streams.append(ids[: shape.stream_prompt_tokens])
    if len(long) < shape.long_tokens or len(streams) < shape.num_streams:
        raise ConfigError(
            f"this Python's own documentation has text for {len(long):,} tokens and "
            f"{len(streams)} streams, but {shape.long_tokens:,} and {shape.num_streams} are wanted",
            hint="ask for fewer streams or a shorter prompt",
        )
    return StallPrompts(streams, long[: shape.long_tokens])


def run_stall(
    engine: Engine,
    prompts: StallPrompts,
    shape: StallShape,
    watch: Callable[[Progress], None] = lambda _: None,
) -> StallRun:
    """Run the experiment once.

    Args:
        engine: made with `shape.options`; nothing else may use it, and it is closed at the end.
        prompts: what the requests begin with.
        shape: the sizes.
        watch: told how far the run is, after each step.

    Raises:
        EvenflowError: a request failed.
    """
    recorder = Recorder()
    requests = _Requests(engine, shape, prompts.long)
    # The first steps of a process touch fresh memory; no stream should pay for that. Backwards, so
    # that the prefix cache holds nothing of the real prompt.
    requests.submit("warm-up", prompts.long[: shape.budget][::-1], 2)
    while not requests.wait():
        pass
    del requests.tokens["warm-up"]
    engine.observe(recorder)
    streams = [f"stream-{i}" for i in range(len(prompts.streams))]
    requests.lead = dict.fromkeys(streams, shape.lead_tokens)
    for name, prompt in zip(streams, prompts.streams, strict=True):
        requests.submit(name, prompt, shape.stream_tokens)
    num_ended = 0
    while num_ended <= len(streams):
        num_ended += requests.wait()
        chunks = [c.length for s in recorder.steps for c in s.chunks if c.request_id == LONG_ID]
        done = sum(len(requests.tokens[name]) for name in streams)
        watch(Progress(done, sum(chunks), LONG_ID in requests.tokens))
    config = {name: getattr(engine.config, name) for name in engine.config.origins}
    engine.close()  # after which every record has been written
    by_id = {record.id: record for record in recorder.requests}
    return StallRun(
        engine.config.enable_chunked_prefill,
        config,
        recorder.steps,
        [by_id[name] for name in streams],
        by_id[LONG_ID],
        requests.tokens,
    )


class _Requests:
    """Submits requests and collects their tokens; the long one follows the lead by itself.

    It is submitted by the sink, on the engine's thread, in the very step that completes the lead:
    a step may be over before another thread has woken up.
    """

    def __init__(self, engine: Engine, shape: StallShape, long: list[int]) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.lead: dict[str, int] = {}  # output tokens that each of these still has to reach
        self._engine, self._shape, self._long = engine, shape, long
        self._steps: queue.SimpleQueue[list[StreamEvent]] = queue.SimpleQueue()

    def submit(self, name: str, prompt: list[int], max_tokens: int) -> None:
        """Start a greedy request of exactly `max_tokens`."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        self.tokens[name] = []
        self._engine.submit(prompt, params, self._sink, request_id=name)

    def wait(self) -> int:
        """Wait for a step; returns how many requests ended in it."""
        events = self._steps.get()
        for event in events:
            if event.error is not None:
                raise event.error
        return sum(event.finish_reason is not None for event in events)

    def _sink(self, events: list[StreamEvent]) -> None:
        for event in events:
            if event.token_id >= 0:
                self.tokens[event.request_id].append(event.token_id)
        waiting = {n: k for n, k in self.lead.items() if len(self.tokens.get(n, ())) < k}
        if self.lead and not waiting:
            self.lead = {}
            self.submit(LONG_ID, self._long, self._shape.long_output_tokens)
        self._steps.put(events)
