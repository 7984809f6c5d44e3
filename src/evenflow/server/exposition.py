"""Writes the counts of `Metrics` as Prometheus text.

In: the counts. Out: bytes. A prefix other than ours ("vllm") keeps dashboards made for another
engine working; what only we count keeps its name behind that prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from evenflow.schedule.options import SchedulerStats
    from evenflow.server.metrics import Metrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
BLOCKED = ("kv", "lanes", "seqs", "prefix", "policy", "budget")


class Exposition(Collector):
    """The registry behind /metrics.

    Args:
        metrics: the counts.
        prefix: the names begin with it.
    """

    def __init__(self, metrics: Metrics, prefix: str) -> None:
        self._metrics = metrics
        self._prefix = prefix
        self._labels = {"model_name": "", "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def name_model(self, name: str) -> None:
        """The model is known from now on."""
        self._labels["model_name"] = name

    def render(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every family, as it stands now."""
        m = self._metrics
        yield from self._gauges()
        yield from self._counters()
        for histogram in (m.ttft, m.itl, m.step_time, m.step_tokens, m.chunks, *m.per_request):
            yield histogram.family(self._prefix, self._labels)

    def _gauges(self) -> Iterator[Metric]:
        m = self._metrics
        yield self._gauge(
            "step_budget_tokens", "Positions the last step was allowed.", m.budget_tokens
        )
        if m.stats is None:
            return
        stats = m.stats()
        kv = stats.kv
        total = kv.held + kv.cached + kv.free
        yield self._gauge("num_requests_running", "Admitted requests.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", stats.num_waiting)
        waiting = GaugeMetricFamily(
            f"{self._prefix}:num_requests_waiting_by_reason",
            "Requests in the queue, by what held up the first of them in the last step.",
            labels=[*self._labels, "reason"],
        )
        for reason in (*BLOCKED, "none"):
            is_it = reason == (m.blocked or "none")
            waiting.add_metric([*self._labels.values(), reason], stats.num_waiting if is_it else 0)
        yield waiting
        yield self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks held; 1 is all.", kv.held / total
        )
        blocks = GaugeMetricFamily(
            f"{self._prefix}:kv_blocks",
            "KV blocks by state.",
            labels=[*self._labels, "state"],
        )
        for state, count in zip(
            ("used", "cached", "free"), (kv.held, kv.cached, kv.free), strict=True
        ):
            blocks.add_metric([*self._labels.values(), state], count)
        yield blocks

    def _counters(self) -> Iterator[Metric]:
        m = self._metrics
        for name, text, value in (
            ("prompt_tokens", "Prompt positions computed, chunk by chunk.", m.num_prompt_tokens),
            ("prompt_tokens_cached", "Prompt positions found in the cache.", m.num_cached_tokens),
            ("generation_tokens", "Tokens generated.", m.num_output_tokens),
            ("prefix_cache_queries", "Positions looked up in the cache.", m.num_looked_up_tokens),
            ("prefix_cache_hits", "Positions found in the cache.", m.num_cached_tokens),
            ("num_preemptions", "Times a request lost its blocks.", m.num_preemptions),
            ("recomputed_tokens", "Positions computed again.", m.num_recomputed_tokens),
            ("admission_rejections", "Requests refused: the queue was full.", m.num_refused),
            (
                "decode_stall_seconds",
                "What prompts added to the gaps of streams, over a step without one; all streams.",
                m.stall_s,
            ),
            ("predicted_step_seconds", "Expected time of predicted steps.", m.predicted_s),
            ("predicted_step_real_seconds", "Real time of these steps.", m.predicted_real_s),
        ):
            yield self._counter(name, text, value)
        yield self._by("steps", "Steps, by what they computed.", "kind", m.steps)
        yield self._by("steps_seconds", "Time of these steps.", "kind", m.steps_s)
        yield self._by(
            "step_tokens",
            "Positions computed, by kind.",
            "kind",
            {"prefill": m.num_prompt_tokens, "decode": m.num_decode_tokens},
        )
        yield self._by("request_success", "Ended requests.", "finished_reason", m.finishes)
        if m.stats is not None and (stats := m.stats()).accepted_by_place:
            yield from self._speculation(stats)

    def _speculation(self, stats: SchedulerStats) -> Iterator[Metric]:
        for name, text, value in (
            ("drafts", "Decodes that were lengthened by drafts.", stats.num_drafts),
            ("draft_tokens", "Drafts that were verified.", stats.num_draft_tokens),
            ("accepted_tokens", "Tokens that came of drafts.", stats.num_accepted_tokens),
        ):
            yield self._counter(f"spec_decode_num_{name}", text, value)
        yield self._by(
            "spec_decode_num_accepted_tokens_per_pos",
            "Tokens that came of drafts, by place in the draft.",
            "position",
            {str(place): count for place, count in enumerate(stats.accepted_by_place)},
        )

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by(self, name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=[*self._labels, label])
        for value, count in list(counts.items()):
            family.add_metric([*self._labels.values(), value], count)
        return family
