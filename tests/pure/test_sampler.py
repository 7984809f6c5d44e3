"""The sampler against its own rule, written out token by token in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.runner import sampler
from evenflow.runner.batch import SamplingBatch
from evenflow.runner.outcome import BAD_LOGITS, NOTHING_LEFT
from evenflow.runner.sampler import philox4x32, sample, uniform

VOCAB = 12


def batch(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0, banned=()):
    """A SamplingBatch of `rows` rows; a list gives one value per row."""

    def column(value, dtype):
        return np.array(value if isinstance(value, list) else [value] * rows, dtype)

    return SamplingBatch(
        temperatures=column(temperature, np.float32),
        top_ks=column(top_k, np.int32),
        top_ps=column(top_p, np.float32),
        min_ps=column(min_p, np.float32),
        seeds=column(seed, np.uint64),
        positions=column(position, np.int64),
        banned_ids=np.array(list(banned) * rows, np.int32),
        banned_offsets=np.arange(rows + 1, dtype=np.int32) * len(banned),
    )


def draw(logits, **params):
    return int(sample(np.array([logits], np.float32), batch(1, **params))[0])


def by_the_rule(logits, *, temperature, top_k, top_p, min_p, seed, position, banned=()):
    """The docstring's rule, one id at a time."""
    f32 = np.float32
    scores = [f32(-np.inf) if i in banned else f32(x) for i, x in enumerate(logits)]
    best = max(scores)
    if f32(temperature) == 0:
        return scores.index(best)
    weights = [np.exp(f32(f32(x - best) / f32(temperature))) for x in scores]
    kept = [i for i, w in enumerate(weights) if w >= f32(min_p)]
    kept.sort(key=lambda i: (-scores[i], i))
    if top_k:
        kept = kept[:top_k]
    if f32(top_p) < 1:
        total = sum(float(weights[i]) for i in sorted(kept))
        head, before = [], 0.0
        for i in kept:
            if before < float(f32(top_p)) * total:
                head.append(i)
            before += float(weights[i])
        kept = head
    kept = sorted(i for i in kept if weights[i] > 0)
    threshold = uniform(seed, position) * sum(float(weights[i]) for i in kept)
    running = 0.0
    for i in kept:
        running += float(weights[i])
        if running > threshold:
            return i
    return kept[-1]


# few distinct values: ties are the rule, and -inf is a masked token
LOGITS = st.lists(
    st.sampled_from([-math.inf, -3.0, -1.0, 0.0, 0.5, 1.0, 1.0000001, 2.0, 9.0]),
    min_size=VOCAB,
    max_size=VOCAB,
)


@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 7.0]),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.sampled_from([1e-9, 0.3, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    banned=st.sets(st.integers(0, VOCAB - 1), max_size=3),
)
def test_every_draw_follows_the_rule(logits, banned, **params):
    if all(math.isinf(x) or i in banned for i, x in enumerate(logits)):
        wanted = BAD_LOGITS if all(math.isinf(x) for x in logits) else NOTHING_LEFT
        assert draw(logits, banned=sorted(banned), **params) == wanted
        return
    assert draw(logits, banned=sorted(banned), **params) == by_the_rule(
        logits, banned=banned, **params
    )


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_a_large_vocabulary_follows_the_rule(scale, top_p):
    """Flat and peaked rows: the nucleus is found in 256, in more, or in nearly all of them."""
    rng = np.random.default_rng(5)
    logits = np.round(rng.normal(0, scale, 6000), 2).astype(np.float32)  # rounded: with ties
    for seed in range(3):
        params = {"temperature": 0.8, "top_k": 0, "top_p": top_p, "min_p": 0.0, "seed": seed}
        assert draw(logits, position=9, **params) == by_the_rule(logits, position=9, **params)


def test_philox_gives_the_known_answers_of_its_authors():
    ones = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((ones,) * 4, (ones,) * 2) == (
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    )  # fmt: skip
    digits_of_pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox4x32(digits_of_pi, (0xA4093822, 0x299F31D0)) == (
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
    )  # fmt: skip


def test_uniform_uses_every_bit_of_seed_and_position():
    base = uniform(0, 0)
    assert base == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53
    others = {uniform(1 << bit, 0) for bit in range(64)} | {uniform(0, 1 << b) for b in range(63)}
    assert len(others | {base}) == 64 + 63 + 1
    assert all(0 <= u < 1 for u in others)


def test_greedy_takes_the_lowest_of_the_largest():
    assert draw([0, 3, 3, 1], temperature=0.0) == 1
    assert draw([0, 3, 3, 1], temperature=0.0, banned=[1]) == 2


def test_ties_at_the_edge_of_top_k_keep_the_lower_ids():
    drawn = {draw([1, 5, 5, 5, 0], top_k=2, seed=s) for s in range(64)}
    assert drawn == {1, 2}


def test_the_token_that_reaches_top_p_is_kept():
    halves = [math.log(0.5), math.log(0.25), math.log(0.25)]
    assert {draw(halves, top_p=0.5, seed=s) for s in range(64)} == {0}
    assert {draw(halves, top_p=0.51, seed=s) for s in range(64)} == {0, 1}
    assert {draw(halves, top_p=0.76, seed=s) for s in range(64)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("number", "logits", "token"),
    [
        (0.0, [-1000.0, 0.0, 0.0], 1),  # its weight is 0: it is kept, but never drawn
        (0.5, [0.0, 0.0], 1),  # the sum must exceed the threshold, not reach it
        (0.5 - 2**-53, [0.0, 0.0], 0),
        (1 - 2**-53, [0.0, 0.3, -0.1, -1000.0], 2),  # the end of the sums, before a weight of 0
    ],
)
def test_the_edges_of_a_draw(monkeypatch, number, logits, token):
    monkeypatch.setattr(sampler, "uniform", lambda *_: number)
    assert draw(logits) == token


def test_min_p_is_a_share_of_the_largest():
    logits = [0.0, math.log(0.51), math.log(0.49)]
    assert {draw(logits, min_p=0.5, seed=s) for s in range(99)} == {0, 1}


def test_frequencies_are_the_probabilities():
    """Chi-square over 6,000 fixed draws; 99.9 % of such samples stay under 20.5."""
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    rows = 6000
    logits = np.tile(np.log(probabilities).astype(np.float32) * 2, (rows, 1))
    tokens = sample(logits, batch(rows, temperature=2.0, seed=3, position=list(range(rows))))
    counts = np.bincount(tokens, minlength=6)
    wanted = probabilities * rows
    assert ((counts - wanted) ** 2 / wanted).sum() < 20.5


def test_a_row_does_not_depend_on_its_neighbours():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (40, 300)).astype(np.float32)
    columns = {
        "temperature": rng.choice([0.0, 0.7, 1.5], 40).tolist(),
        "top_k": rng.integers(0, 50, 40).tolist(),
        "top_p": rng.choice([0.5, 0.9, 1.0], 40).tolist(),
        "seed": rng.integers(0, 2**62, 40).tolist(),
        "position": rng.integers(0, 9000, 40).tolist(),
    }
    together = sample(logits, batch(40, **columns)).tolist()
    alone = [draw(logits[i], **{k: v[i] for k, v in columns.items()}) for i in range(40)]
    assert together == alone


def test_the_logits_are_left_as_they_were():
    logits = np.array([[1, 2, 3]], np.float32)
    sample(logits, batch(1, banned=[2], temperature=0.5, top_k=1))
    assert logits.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused_with_their_row(bad, temperature):
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = bad
    drawn = sample(logits, batch(3, temperature=temperature)).tolist()
    assert drawn[1] == BAD_LOGITS
    assert min(drawn[0], drawn[2]) >= 0


def test_banning_every_token_leaves_nothing():
    assert draw([1, 2], temperature=0.0, banned=[0, 1]) == NOTHING_LEFT


def test_no_rows_are_no_tokens():
    assert sample(np.empty((0, 5), np.float32), batch(0)).shape == (0,)
