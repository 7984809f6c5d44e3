"""What `make bench-peers` makes of the times it gets: figures, pairs, intervals, the table."""

from __future__ import annotations

import io
import json
import math
import sys

import numpy as np
import pytest
from peers.conduct import Run, conduct
from peers.figures import Figure, agreement, decode_rate, figures, gaps_in, outlasted, ratios
from peers.install import Ready
from peers.plan import PEERS, Job, Measured, Peer, jobs, prompts
from peers.table import as_data, as_markdown, pairs_of
from peers.weights import from_bf16, to_bf16
from peers.worker import LONG, run, serve

MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 24.0, "load_1m": 0.1, "system": "Linux"}
DECODE = Job("decode", 0, 2, 64, 3)
STALL = Job("stall", 128, 2, 64, 5, 4000)


def _decode(peer, repeat, gap_s):
    times = {f"stream-{i}": [1 + i, 2 + gap_s, 2 + 2 * gap_s] for i in range(2)}
    tokens = {name: [1, 2, 3] for name in times}
    sent = dict.fromkeys(times, 0.0)
    return Measured(peer, repeat, DECODE, {"sent_s": sent, "times_s": times, "tokens": tokens})


def test_decode_counts_from_when_every_stream_has_begun():
    assert decode_rate([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) == pytest.approx(4 / 2)


def test_only_gaps_that_overlap_the_prefill_count():
    assert gaps_in(2.5, 3.5, [[0, 1, 2, 4, 4.1], [3.4, 3.6]]) == pytest.approx([2, 0.2])


def test_a_stall_has_a_worst_gap_and_the_long_prompts_ttft():
    times = {"stream-0": [0.0, 1.0, 1.5, 4.0], "stream-1": [0.0, 1.0, 1.6, 4.1], LONG: [3.0]}
    one = Measured("evenflow", 0, STALL, {"sent_s": {LONG: 1.2}, "times_s": times})
    assert {f.name: v for f, v in figures(one).items()} == {
        "worst gap, 128 a step": pytest.approx(2500),
        "TTFT, 128 a step": pytest.approx(1.8),
    }
    assert outlasted(one)
    times["stream-0"] = [0.0, 1.0, 1.5]
    assert not outlasted(one)


def test_ratios_are_paired_by_repeat_and_above_one_is_better():
    all_of = [_decode("us", r, 0.1 * 2**r) for r in range(3)]
    all_of += [_decode("them", r, 0.2 * 2**r * (1 + 0.01 * r)) for r in range(3)]
    (ratio,) = ratios(all_of, "us", "them").values()
    logs = [math.log(2 * (1 + 0.01 * r)) for r in range(3)]
    # two streams of three tokens: the same factor in the rate but for the wait for the first
    ours = [decode_rate(m.answer["times_s"].values()) for m in all_of]
    expected = [math.log(ours[r] / ours[3 + r]) for r in range(3)]
    assert ratio.pairs == 3
    assert ratio.mean == pytest.approx(math.exp(sum(expected) / 3))
    assert ratio.low < ratio.mean < ratio.high
    assert ratio.mean > 1
    assert len(logs) == 3


def test_a_repeat_that_one_side_lacks_makes_no_pair():
    all_of = [_decode("us", 0, 0.1), _decode("us", 1, 0.1), _decode("them", 1, 0.2)]
    (ratio,) = ratios(all_of, "us", "them").values()
    assert (ratio.pairs, ratio.low) == (1, None)


def test_agreement_is_the_share_of_streams_with_the_same_first_tokens():
    ours, theirs = _decode("us", 0, 0.1), _decode("them", 0, 0.1)
    theirs.answer["tokens"]["stream-1"] = [1, 2, 4]
    assert agreement([ours, theirs], "us", "them") == 0.5
    assert agreement([ours], "us", "them") is None


def test_every_peer_gets_the_same_ids_and_every_repeat_new_ones():
    job = jobs()[-1]
    assert prompts(job, 0) == prompts(job, 0)
    assert prompts(job, 0) != prompts(job, 1)
    streams, long = prompts(job, 0)
    assert [len(ids) for ids in streams] == [64] * 8
    assert len(long) == 4000


@pytest.mark.parametrize("job", [j for j in jobs() if j.kind == "stall"], ids=lambda j: j.name)
def test_streams_of_a_stall_outlast_the_prefill(job):
    chunks = -(-job.long_tokens // (job.budget - job.streams)) if job.budget else 1
    assert job.output_tokens > 8 + chunks


def test_bfloat16_rounds_to_the_nearest_with_ties_to_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.14159, 2.0**-20], np.float32)
    back = from_bf16(to_bf16(values))
    assert back.tolist() == [1.0, 1.0, 1 + 2**-6, pytest.approx(-3.140625), 2.0**-20]


class Fake:
    """Two tokens a step for everybody; the long prompt takes one step more."""

    version = "1"

    def __init__(self):
        self.left, self.opened = {}, []

    def open(self, budget):
        self.opened.append(budget)

    def submit(self, name, ids, max_tokens):
        if not ids:
            raise ValueError("empty prompt")
        self.left[name] = max_tokens

    def step(self):
        found = []
        for name in list(self.left):
            count = min(2, self.left[name])
            found.append((name, list(range(count))))
            self.left[name] -= count
            if not self.left[name]:
                del self.left[name]
        return found

    def close(self):
        self.opened.append("closed")


def test_a_worker_lands_the_long_prompt_once_every_stream_has_its_lead():
    job = {"streams": [[1], [2]], "long": [3, 4], "output_tokens": 8, "lead": 4}
    answer = run(Fake(), job)
    assert {name: len(t) for name, t in answer["tokens"].items()} == {
        "stream-0": 8, "stream-1": 8, LONG: 1,
    }  # fmt: skip
    first = [answer["times_s"][f"stream-{i}"] for i in range(2)]
    assert all(t[3] <= answer["sent_s"][LONG] <= t[4] for t in first)


def test_a_worker_answers_each_command_with_one_line_and_an_error_with_its_name(monkeypatch):
    commands = [{"do": "open", "budget": 128}]
    commands += [{"do": "run", "streams": [[]], "long": [], "output_tokens": 1, "lead": 0}]
    lines = "".join(json.dumps(c) + "\n" for c in commands)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    out, engine = io.StringIO(), Fake()
    serve(engine, out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers == [{"version": "1"}, {"error": "ValueError: empty prompt"}]
    assert engine.opened == [128, "closed"]


WORKER = """#!{python}
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "open":
        answer = {{"version": "7"}}
    elif sys.argv[3] == "broken":
        sys.exit("out of luck")
    else:
        names = [f"stream-{{i}}" for i in range(len(command["streams"]))]
        answer = {{
            "sent_s": dict.fromkeys(names, 0.0),
            "times_s": {{n: [1.0, 2.0, 3.0] for n in names}},
            "tokens": {{n: [1, 2, 3] for n in names}},
        }}
    print(json.dumps(answer), flush=True)
"""


def test_peers_take_turns_and_one_that_fails_is_left_out_with_its_last_words(tmp_path):
    script = tmp_path / "python"
    script.write_text(WORKER.format(python=sys.executable))
    script.chmod(0o755)
    peers = [Peer("a", "good", "bf16"), Peer("b", "broken", "bf16"), Peer("c", "none", "bf16")]
    ready = {"good": Ready(script, ""), "broken": Ready(script, ""), "none": Ready(script, "no!")}
    said = []
    found = conduct(peers, ready, [DECODE], tmp_path, repeats=2, minutes=1.0, say=said.append)
    assert [(m.peer, m.repeat) for m in found.measured] == [("a", 0), ("a", 1)]
    assert found.problems == {"b": "failed: out of luck", "c": "not installed: no!"}
    assert found.versions == {"a": "7", "b": "7"}
    assert found.repeats == 2


def test_no_repeat_is_begun_that_would_not_be_over_in_time(tmp_path):
    script = tmp_path / "python"
    script.write_text(WORKER.format(python=sys.executable))
    script.chmod(0o755)
    ready = {"good": Ready(script, "")}
    peers = [Peer("a", "good", "bf16")]
    said = []
    found = conduct(peers, ready, [DECODE], tmp_path, repeats=9, minutes=0.0, say=said.append)
    assert found.repeats == 1
    assert "1 of 9 repeats" in said[-1]


def test_the_table_shows_figures_ratios_agreement_and_who_is_missing():
    peers = [PEERS[0], PEERS[1], PEERS[2]]
    run_ = Run(
        [_decode("evenflow", r, 0.1) for r in range(2)]
        + [_decode("openvino", r, 0.2 + 0.01 * r) for r in range(2)],
        {"vllm": "not installed: no wheel"},
        {"evenflow": "0.1", "openvino": "2026.4"},
        2,
    )
    page = as_markdown(run_, peers, MACHINE, "2026-11-30")
    assert "| decode, 2 streams, tok/s |" in page
    assert "evenflow : openvino" in page
    assert " to " in page.split("How many times better")[1]
    assert "first 16 tokens are evenflow's: openvino 100%" in page
    assert "vllm is missing: `not installed: no wheel`" in page
    data = json.loads(json.dumps(as_data(run_, peers, MACHINE, "2026-11-30")))
    assert data["ratios"]["evenflow : openvino"]["decode, 2 streams"]["pairs"] == 2
    assert data["problems"] == run_.problems


def test_who_is_held_against_whom_has_weights_of_one_format():
    assert pairs_of(PEERS) == [
        ("evenflow", "openvino"),
        ("evenflow", "vllm"),
        ("evenflow", "llama.cpp"),
        ("evenflow-int8", "openvino-int8"),
    ]
    assert Figure("x", "ms", higher=False).higher is False
