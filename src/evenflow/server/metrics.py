"""Counts what the engine does, for /metrics: names and labels after vLLM's where they mean the same.

In, on the engine's thread: the events of each step and the records of steps and requests. Out, on
the loop's thread: Prometheus families. Times come from `clock`; what is counted when, is written at
each method. Only plain additions happen per step, so a stream does not feel it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from evenflow.server import histogram as h
from evenflow.server.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.schedule.options import SchedulerStats
    from evenflow.trace import RequestRecord, StepRecord
    from evenflow.types import StreamEvent

STEP_KINDS = ("decode", "mixed", "prefill")
FINISHES = ("stop", "length", "abort", "error")
FINISH_WINDOW_S = 30.0
FLOOR_SHARE = 0.1  # how fast the time of a step without a prompt follows the newest one


class Metrics:
    """Everything that is counted.

    Args:
        clock: seconds; the engine's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._arrived_s: dict[str, float] = {}
        self._not_admitted: dict[str, int] = {}  # of requests without a chunk yet: prompt tokens
        self._last_token_s: dict[str, float] = {}
        self._finished_s: deque[float] = deque(maxlen=1000)
        self._floor_s: float | None = None  # a step without a prompt takes about this long
        self._owed = False  # whether prompts ran since the last decode
        self._gaps: dict[float, int] = {}  # of the step being committed: seconds -> streams
        self._num_tokens = 0
        self.last_gaps: dict[float, int] = {}  # of the last step that was committed
        self.last_num_tokens = 0
        self.stats: Callable[[], SchedulerStats] | None = None
        self.num_refused = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_looked_up_tokens = 0
        self.num_output_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_preemptions = 0
        self.stall_s = 0.0
        self.budget_tokens = 0
        self.predicted_s = 0.0
        self.predicted_real_s = 0.0
        self.blocked = ""
        self.steps = dict.fromkeys(STEP_KINDS, 0)
        self.num_decode_tokens = 0
        self.steps_s = dict.fromkeys(STEP_KINDS, 0.0)
        self.finishes = dict.fromkeys(FINISHES, 0)
        self.ttft = Histogram(
            "time_to_first_token_seconds", "Arrival to first token.", h.TTFT_BOUNDS_S
        )
        self.itl = Histogram(
            "inter_token_latency_seconds",
            "Gap between two steps' tokens of a stream.",
            h.GAP_BOUNDS_S,
        )
        self.step_time = Histogram("step_seconds", "Time of a step.", h.STEP_BOUNDS_S)
        self.step_tokens = Histogram(
            "iteration_tokens_total", "Positions computed by a step.", h.TOKEN_BOUNDS
        )
        self.chunks = Histogram(
            "prefill_chunk_tokens", "Length of each chunk of a prompt.", h.TOKEN_BOUNDS
        )
        self.per_request = [
            Histogram("e2e_request_latency_seconds", "Arrival to end.", h.LONG_BOUNDS_S),
            Histogram("request_queue_time_seconds", "Arrival to first step.", h.LONG_BOUNDS_S),
            Histogram(
                "request_prefill_time_seconds", "First step to first token.", h.LONG_BOUNDS_S
            ),
            Histogram("request_decode_time_seconds", "First token to last.", h.LONG_BOUNDS_S),
            Histogram(
                "request_time_per_output_token_seconds",
                "A request's mean gap; hides stalls, see inter_token_latency_seconds.",
                h.GAP_BOUNDS_S,
            ),
            Histogram("request_prompt_tokens", "Length of a prompt.", h.TOKEN_BOUNDS),
            Histogram("request_generation_tokens", "Length of an answer.", h.TOKEN_BOUNDS),
        ]

    # -- the engine's thread ----------------------------------------------------------------

    def measure(self, events: list[StreamEvent]) -> None:
        """A step's tokens are there: count each stream's gap, once per group of equal ones.

        Tokens that were drafted come with the one before them: there is no gap between the two.
        """
        now_s = self._clock()
        last_s = self._last_token_s
        since: dict[float, int] = {}
        num_tokens = 0
        for event in events:
            request_id = event.request_id
            if event.token_id >= 0:
                num_tokens += 1
                before_s = last_s.get(request_id)
                if before_s is None:
                    if request_id in self._arrived_s:
                        self.ttft.observe(now_s - self._arrived_s[request_id])
                elif before_s != now_s:
                    since[before_s] = since.get(before_s, 0) + 1
                last_s[request_id] = now_s
            if event.finish_reason is not None:
                last_s.pop(request_id, None)
                self._arrived_s.pop(request_id, None)
        self.num_output_tokens += num_tokens
        self._num_tokens += num_tokens
        for before_s, count in since.items():
            gap_s = now_s - before_s
            self.itl.observe(gap_s, count)
            self._gaps[gap_s] = self._gaps.get(gap_s, 0) + count

    def step(self, record: StepRecord) -> None:
        """A step was committed; `measure` has seen its tokens."""
        num_decode_tokens = record.num_decodes + record.draft_tokens
        num_chunk_tokens = record.num_tokens - num_decode_tokens
        kind = "decode" if not record.chunks else "mixed" if record.num_decodes else "prefill"
        self.steps[kind] += 1
        self.steps_s[kind] += record.seconds
        self.num_decode_tokens += num_decode_tokens
        self.num_prompt_tokens += num_chunk_tokens
        self.num_recomputed_tokens += record.recomputed_tokens
        self.num_preemptions += len(record.preempted)
        self.budget_tokens = record.budget
        self.blocked = record.blocked
        self.step_time.observe(record.seconds)
        self.step_tokens.observe(record.num_tokens)
        for chunk in record.chunks:
            self.chunks.observe(chunk.length)
            self._admit(chunk.request_id, chunk.cached)
        if record.predicted_s is not None:
            self.predicted_s += record.predicted_s
            self.predicted_real_s += record.seconds
        self._count_stall(record)
        self.last_gaps, self._gaps = self._gaps, {}
        self.last_num_tokens, self._num_tokens = self._num_tokens, 0

    def _admit(self, request_id: str, num_cached_tokens: int) -> None:
        """Count a prompt's look-up in the prefix cache, with its first chunk."""
        num_tokens = self._not_admitted.pop(request_id, None)
        if num_tokens is not None:
            self.num_looked_up_tokens += num_tokens
            self.num_cached_tokens += num_cached_tokens

    def _count_stall(self, record: StepRecord) -> None:
        """What prompts added to the gaps of this step, over a step without one."""
        owed = self._owed or bool(record.chunks)
        if not record.num_decodes:
            self._owed = owed
            return
        self._owed = False
        if not owed:
            old_s = record.seconds if self._floor_s is None else self._floor_s
            self._floor_s = old_s + FLOOR_SHARE * (record.seconds - old_s)
        elif self._floor_s is not None:
            floor_s = self._floor_s
            self.stall_s += sum(max(0.0, gap_s - floor_s) * n for gap_s, n in self._gaps.items())

    def request(self, record: RequestRecord) -> None:
        """A request has ended; when its first step was its last, that step's record comes later."""
        self._finished_s.append(record.finish_s)
        self.finishes[record.finish_reason] += 1
        e2e, queue, prefill, decode, mean, prompt, output = self.per_request
        e2e.observe(record.finish_s - record.arrival_s)
        prompt.observe(record.prompt_tokens)
        output.observe(record.output_tokens)
        if record.first_scheduled_s is None:
            self._not_admitted.pop(record.id, None)
            return
        self._admit(record.id, record.cached_tokens)
        queue.observe(record.first_scheduled_s - record.arrival_s)
        if record.first_token_s is None:
            return
        prefill.observe(record.first_token_s - record.first_scheduled_s)
        took_s = record.token_times_s[-1] - record.first_token_s
        decode.observe(took_s)
        if record.output_tokens > 1:
            mean.observe(took_s / (record.output_tokens - 1))

    # -- the loop's thread ------------------------------------------------------------------

    def arrive(self, request_id: str, num_prompt_tokens: int) -> None:
        """A request is about to be queued."""
        self._arrived_s[request_id] = self._clock()
        self._not_admitted[request_id] = num_prompt_tokens

    def forget(self, request_id: str) -> None:
        """It was refused after all."""
        self._arrived_s.pop(request_id, None)
        self._not_admitted.pop(request_id, None)

    def count_refusal(self) -> None:
        """A request found the queue full."""
        self.num_refused += 1

    @property
    def num_waiting(self) -> int:
        """Requests in the engine's queue now."""
        return 0 if self.stats is None else self.stats().num_waiting

    def finished_per_s(self) -> float:
        """Requests that ended per second lately."""
        now_s = self._clock()
        times = list(self._finished_s)
        recent = [t for t in times if now_s - t <= FINISH_WINDOW_S]
        if len(recent) < 2:
            return 0.0
        return len(recent) / max(now_s - recent[0], 1e-3)
