"""A made-up engine whose stalls are planted, so that what measures it can be held to the truth.

In: requests with their arrival, a `Plan` of what goes wrong and when. Out: when every token leaves
the engine, and the list of what was planted. It runs in virtual time here (`simulate`), and behind
HTTP in real time in `synthetic_server.py`.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from evenflow.bench.records import Message, Probe, Records, RequestRecord

TIE = 0.8  # prompts whose parts in a gap differ by less are both to blame


class Arrival(NamedTuple):
    at_s: float
    id: str
    prompt_tokens: int
    output_tokens: int
    class_name: str = ""


class Event(NamedTuple):
    """At `at_s`, or at the first step after it, something takes `seconds`."""

    at_s: float
    seconds: float
    stream: str = ""  # of a preemption or a buffer: which request; "" is any


@dataclass(frozen=True)
class Plan:
    """How the engine behaves. A step takes decode_ms + token_ms * prefill tokens."""

    decode_ms: float = 10.0
    token_ms: float = 0.02
    budget: int | None = None  # None: chunking is off, a prompt is one step
    max_prefills: int = 1  # prompts in one step
    tokens_per_message: int = 1
    jitter_ms: float = 0.0  # each message is late by a uniform draw of it
    pauses: tuple[Event, ...] = ()
    preemptions: tuple[Event, ...] = ()
    buffers: tuple[Event, ...] = ()  # tokens are held back, then come as one message
    client_stops: tuple[Event, ...] = ()  # what arrives meanwhile is seen at the end
    max_running: int | None = None
    separate: bool = False  # a step with a prompt decodes nothing
    seed: int = 0


class Planted(NamedTuple):
    """What really happened in a stretch of time; `tokens` of a prefill by request."""

    cause: str
    start_s: float
    end_s: float
    tokens: dict[str, int]
    stream: str = ""


class Step(NamedTuple):
    """A step that ran; `chunks` are prompt tokens by request."""

    start_s: float
    seconds: float
    num_decodes: int
    chunks: dict[str, int]
    preempted: list[str]


class Token(NamedTuple):
    id: str
    last: bool


@dataclass
class _Running:
    arrival: Arrival
    computed: int = 0
    emitted: int = 0
    held_until_s: float = 0.0  # preempted

    @property
    def decoding(self) -> bool:
        return self.computed >= self.arrival.prompt_tokens


@dataclass
class SyntheticEngine:
    """The schedule; the caller keeps the clock."""

    plan: Plan
    planted: list[Planted] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    waiting: list[Arrival] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    _done: set[Event] = field(default_factory=set)

    def submit(self, arrival: Arrival) -> None:
        self.waiting.append(arrival)

    def cancel(self, request_id: str) -> None:
        self.waiting = [a for a in self.waiting if a.id != request_id]
        self.running = [r for r in self.running if r.arrival.id != request_id]

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self, now_s: float) -> tuple[float, list[Token]]:
        """Seconds of the next step and the tokens that leave at its end."""
        for pause in self.plan.pauses:
            if pause not in self._done and pause.at_s <= now_s:
                self._done.add(pause)
                self.planted.append(Planted("server_pause", now_s, now_s + pause.seconds, {}))
                return pause.seconds, []
        preempted = self._preempt(now_s)
        chunks = self._chunks()
        tokens = sum(chunks.values())
        seconds = (self.plan.decode_ms + self.plan.token_ms * tokens) / 1e3
        if chunks:
            self.planted.append(Planted("prefill", now_s, now_s + seconds, chunks))
        out: list[Token] = []
        for r in list(self.running):
            had = r.decoding
            r.computed += chunks.get(r.arrival.id, 0)
            runs = had and not (self.plan.separate and chunks) and r.held_until_s <= now_s
            if runs or (r.decoding and not had):
                r.emitted += 1
                last = r.emitted >= r.arrival.output_tokens
                out.append(Token(r.arrival.id, last))
                if last:
                    self.running.remove(r)
        decodes = sum(token.id not in chunks for token in out)
        self.steps.append(Step(now_s, seconds, decodes, chunks, preempted))
        return seconds, out

    def _chunks(self) -> dict[str, int]:
        room = self.plan.budget if self.plan.budget is not None else 10**9
        room -= sum(r.decoding for r in self.running)
        chunks: dict[str, int] = {}
        limit = self.plan.max_running or 10**9
        for r in self.running:
            if not r.decoding and room > 0:
                chunks[r.arrival.id] = min(room, r.arrival.prompt_tokens - r.computed)
                room -= chunks[r.arrival.id]
        while (
            self.waiting
            and room > 0
            and len(chunks) < self.plan.max_prefills
            and len(self.running) < limit
        ):
            r = _Running(self.waiting.pop(0))
            self.running.append(r)
            chunks[r.arrival.id] = min(room, r.arrival.prompt_tokens)
            room -= chunks[r.arrival.id]
        return chunks

    def _preempt(self, now_s: float) -> list[str]:
        found = []
        for event in self.plan.preemptions:
            if event in self._done or event.at_s > now_s:
                continue
            victims = [r for r in self.running if r.decoding and r.emitted > 0]
            if event.stream:
                victims = [r for r in victims if r.arrival.id == event.stream]
            if victims:
                self._done.add(event)
                victim = victims[-1]
                victim.held_until_s = now_s + event.seconds
                name = victim.arrival.id
                found.append(name)
                self.planted.append(Planted("preemption", now_s, now_s + event.seconds, {}, name))
        return found


@dataclass
class Simulated:
    """A run in virtual time: what a client saw, and the truth."""

    records: Records
    planted: list[Planted]
    steps: list[Step]
    left: dict[str, list[float]]  # when each token left the engine


def simulate(arrivals: list[Arrival], plan: Plan, *, probes: bool = True) -> Simulated:
    """Run all arrivals to their end; every time in the records is exact to rounding."""
    engine = SyntheticEngine(plan)
    todo = [(a.at_s, i, a) for i, a in enumerate(arrivals)]
    heapq.heapify(todo)
    left: dict[str, list[float]] = {a.id: [] for a in arrivals}
    now = 0.0
    while todo or engine.busy:
        while todo and todo[0][0] <= now:
            engine.submit(heapq.heappop(todo)[2])
        if not engine.busy:
            now = todo[0][0]
            continue
        seconds, tokens = engine.step(now)
        now += seconds
        for token in tokens:
            left[token.id].append(now)
    records = Records({"started_unix_s": 1_764_500_000.0, "workload": "synthetic"})
    rng = random.Random(plan.seed)
    planted = engine.planted + [
        Planted("client", e.at_s, e.at_s + e.seconds, {}) for e in plan.client_stops
    ]
    for a in sorted(arrivals):
        messages = deliver(left[a.id], a.id, plan, rng)
        records.add(record_of(a, messages))
    if probes:
        records.probes = _probes(plan, now)
    return Simulated(records, planted, engine.steps, left)


def deliver(times: list[float], name: str, plan: Plan, rng: random.Random) -> list[Message]:
    """The messages of a stream whose tokens left at these times."""
    messages: list[Message] = []
    group: list[float] = []
    for i, t in enumerate(times):
        group.append(t)
        if len(group) < plan.tokens_per_message and i + 1 < len(times) and i > 0:
            continue
        held = [
            b for b in plan.buffers if b.stream in {"", name} and b.at_s <= t < b.at_s + b.seconds
        ]
        if held and i + 1 < len(times):
            continue
        seen = t + rng.uniform(0, plan.jitter_ms / 1e3)
        for stop in plan.client_stops:
            if stop.at_s <= seen < stop.at_s + stop.seconds:
                seen = stop.at_s + stop.seconds
        seen = max(seen, messages[-1].time_s if messages else 0.0)
        messages.append(Message(seen, len(group), 4 * len(group)))
        group = []
    return messages


def record_of(arrival: Arrival, messages: list[Message]) -> RequestRecord:
    return RequestRecord(
        id=arrival.id,
        class_name=arrival.class_name,
        prompt_tokens=arrival.prompt_tokens,
        asked_tokens=arrival.output_tokens,
        output_tokens=sum(m.tokens for m in messages),
        scheduled_s=arrival.at_s,
        send_s=arrival.at_s,
        first_byte_s=messages[0].time_s if messages else None,
        end_s=messages[-1].time_s if messages else None,
        messages=messages,
        tokens_from="usage",
        status=200,
        finish_reason="length",
    )


def _probes(plan: Plan, end_s: float) -> list[Probe]:
    """The loop's lag, asked every 50 ms while the client runs."""
    found = []
    t = 0.0
    while t < end_s:
        stop = next((s for s in plan.client_stops if s.at_s <= t < s.at_s + s.seconds), None)
        if stop is not None:
            woke = stop.at_s + stop.seconds
            found.append(Probe(woke, "loop_lag", woke - t))
            t = woke
        else:
            found.append(Probe(t, "loop_lag", 0.0002))
        t += 0.05
    return found


def streams(
    count: int, output_tokens: int, prompt_tokens: int = 32, at_s: float = 0.0
) -> list[Arrival]:
    """Steady streams, the victims."""
    return [
        Arrival(at_s, f"stream-{i}", prompt_tokens, output_tokens, "stream") for i in range(count)
    ]


class Truth(NamedTuple):
    """What took most of a gap; `culprits` are the requests whose prefill took most of that."""

    cause: str
    culprits: frozenset[str] = frozenset()


def true_cause(planted: list[Planted], start_s: float, end_s: float, stream: str) -> Truth | None:
    """The truth about one gap of one stream; None when nothing was planted in it."""
    seconds: dict[str, float] = {}
    tokens: dict[str, float] = {}
    for p in planted:
        shared = min(end_s, p.end_s) - max(start_s, p.start_s)
        if p.cause == "client" and end_s > p.end_s + 1e-3:
            continue  # it was over before anything arrived that could have been late
        if shared <= 0 or p.stream not in {"", stream}:
            continue
        seconds[p.cause] = seconds.get(p.cause, 0.0) + shared
        for name, count in p.tokens.items():
            part = count * shared / (p.end_s - p.start_s)
            tokens[name] = tokens.get(name, 0.0) + part
    if not seconds:
        return None
    # a chunk may run while a stream stands still for another reason
    others = {cause: s for cause, s in seconds.items() if s >= 0.5 * (end_s - start_s)}
    others.pop("prefill", None)
    cause = max(others or seconds, key=lambda name: seconds[name])
    if cause != "prefill":
        return Truth(cause)
    most = max(tokens.values())
    return Truth(cause, frozenset(name for name, count in tokens.items() if count >= TIE * most))
