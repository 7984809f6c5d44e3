"""What crosses into C++ is checked: a bad array is refused by name, and nothing is computed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow.errors import ConfigError, ModelError, RunnerError
from evenflow.runner.batch import Batch, build_batch
from evenflow.runner.extras import Biases
from evenflow.runner.native import NativeRunner
from helpers.driving import plan_of, prefill, request_with_blocks
from helpers.native_models import native_runner, prompt, stored_model
from helpers.tiny_model import tiny_model


@pytest.fixture(scope="module")
def runner():
    made = native_runner("bf16", num_blocks=8)
    # what good_batch() continues: without it, its context would be NaN
    prefill(made, request_with_blocks("long", prompt(1, 60), [5]), [60])
    prefill(made, request_with_blocks("short", prompt(2, 9), [3]), [9])
    return made


def good_batch() -> Batch:
    """Two spans: 70 tokens from position 60 in blocks 5, 1, 0, and one token in block 3."""
    long = request_with_blocks("long", prompt(1, 130), [5, 1, 0])
    short = request_with_blocks("short", prompt(2, 10), [3], temperature=0.7, seed=3)
    return build_batch(plan_of((long, 60, 70, 2), (short, 9, 1, 1)), 64)


def changed(batch: Batch, name: str, index: int, value: float) -> Batch:
    owner = batch.sampling if hasattr(batch.sampling, name) and name != "positions" else batch
    array = getattr(owner, name).copy()
    array[index] = value
    new = replace(owner, **{name: array})
    return replace(batch, sampling=new) if owner is batch.sampling else new


@pytest.mark.parametrize(
    ("name", "index", "value", "said"),
    [
        ("token_ids", 3, 160, r"token_ids\[3\] is 160, but must lie from 0 to 159"),
        ("token_ids", 0, -1, r"token_ids\[0\] is -1"),
        ("positions", 4, 65, r"positions\[4\] is 65, but the span puts position 64 there"),
        ("slots", 1, 400, r"slots\[1\] is 400, but its block table puts position 61 into slot 381"),
        ("slots", 70, -2, r"slots\[70\] is -2"),
        ("span_offsets", 1, 0, r"span_offsets\[1\] is 0, but must be at least 1"),
        ("span_offsets", 2, 72, r"span_offsets\[2\] is 72, but the last must be 71"),
        ("span_offsets", 0, 1, r"span_offsets\[0\] is 1, but the first must be 0"),
        ("context_lens", 0, 69, r"context_lens\[0\] is 69, but must lie from 70 to"),
        ("context_lens", 1, 65, r"a context of 65 needs 2 blocks"),
        ("context_lens", 1, 2**30, r"context_lens\[1\] is 1073741824"),
        ("block_tables", 2, 8, r"block_tables\[2\] is 8, but must lie from 0 to 7"),
        ("block_tables", 2, -1, r"block_tables\[2\] is -1"),
        ("block_tables", 3, 1, r"slots\[70\] is 201"),
        ("block_offsets", 1, 5, r"block_offsets\[2\] is 4, but must be at least 6"),
        ("block_offsets", 2, 2**30, "block_offsets do not span the 4 entries"),
        ("logit_rows", 0, 71, r"logit_rows\[0\] is 71"),
        ("temperatures", 0, np.nan, "row 0 has temperature nan"),
        ("temperatures", 0, -1.0, "row 0 has temperature -1"),
        ("top_ps", 1, 0.0, "row 1 has temperature"),
        ("min_ps", 2, 1.5, "row 2 has temperature"),
        ("top_ks", 2, -3, r"top_ks\[2\] is -3"),
        ("banned_offsets", 3, 4, r"banned_offsets\[3\] is 4"),
    ],
)
def test_a_number_out_of_place_is_refused(runner, name, index, value, said):
    batch = good_batch()
    runner.step(batch)
    before = runner.last_logits
    assert np.isfinite(before).all()
    with pytest.raises(RunnerError, match=said) as caught:
        runner.step(changed(batch, name, index, value))
    assert caught.value.hint
    assert np.array_equal(runner.last_logits, before)


def batch_with_extras() -> Batch:
    """As good_batch(), but every optional array is there."""
    asks = {
        "repetition_penalty": 1.2,
        "logit_bias": {3: 1.0, 9: -2.0},
        "logprobs": 4,
        "prompt_logprobs": 2,
    }
    long = request_with_blocks("long", prompt(1, 131), [5, 1, 0], **asks)
    short = request_with_blocks("short", prompt(2, 10), [3], presence_penalty=0.5, logprobs=1)
    short.masks = NoOdds()
    short.is_plain = False
    return build_batch(plan_of((long, 60, 70, 2), (short, 9, 1, 1)), 64)


class NoOdds:
    """A mask source: even ids only."""

    def allowed(self, generated):
        return bytes([0b01010101] * 20)


def with_array(batch: Batch, name: str, array) -> Batch:
    """The batch with another array in its extras."""
    extras = batch.sampling.extras
    for group in ("penalties", "biases", "masks"):
        if hasattr(getattr(extras, group), name):
            changed_group = getattr(extras, group)._replace(**{name: array})
            extras = replace(extras, **{group: changed_group})
    if name in {"num_logprobs", "targets"}:
        extras = replace(extras, **{name: array})
    return replace(batch, sampling=replace(batch.sampling, extras=extras))


@pytest.mark.parametrize(
    ("name", "index", "value", "said"),
    [
        ("repetition_penalties", 2, 0.0, r"repetition_penalties\[2\] is not above 0"),
        ("repetition_penalties", 0, np.nan, r"repetition_penalties\[0\] is not a finite"),
        ("presence_penalties", 2, np.inf, r"presence_penalties\[2\] is not a finite"),
        ("frequency_penalties", 1, -np.inf, r"frequency_penalties\[1\] is not a finite"),
        ("history_ids", 5, 160, r"history_ids\[5\] is 160, but must lie from 0 to 159"),
        ("history_offsets", 3, 11, r"history_offsets\[3\] is 11, but the last must be 10"),
        ("history_offsets", 1, -1, r"history_offsets\[1\] is -1"),
        ("history_prompt_lens", 2, 11, r"history_prompt_lens\[2\] is 11, but must lie from 0"),
        ("bias_ids", 0, -1, r"bias_ids\[0\] is -1"),
        ("bias_values", 1, np.nan, r"bias_values\[1\] is not a finite"),
        ("bias_offsets", 3, 5, r"bias_offsets\[3\] is 5"),
        ("allowed_mask_rows", 2, 1, r"allowed_mask_rows\[2\] is 1, but must lie from -1 to 0"),
        ("num_logprobs", 0, -2, r"num_logprobs\[0\] is -2, but must lie from -1 to 2"),
        ("targets", 0, 160, r"targets\[0\] is 160"),
    ],
)
def test_a_number_out_of_place_in_the_extras_is_refused(runner, name, index, value, said):
    batch = batch_with_extras()
    drawn, report = runner.step(batch)
    assert drawn[:2] == prompt(1, 131)[129:131]  # the targets: nothing was drawn there
    assert drawn[2] % 2 == 0
    assert report.token_ranks.min() >= 1
    if name.startswith("bias"):
        batch = with_bias(batch)
    if name.startswith("history") or name.endswith("penalties"):
        assert batch.sampling.extras.penalties.history_offsets.tolist() == [0, 0, 0, 10]
    array = batch.sampling.extras.arrays()[name].copy()
    array[index] = value
    with pytest.raises(RunnerError, match=said) as caught:
        runner.step(with_array(batch, name, array))
    assert caught.value.hint


def with_bias(batch: Batch) -> Batch:
    """Rows with targets have no bias; give the last row one."""
    biases = Biases(
        np.array([3, 9], np.int32),
        np.array([1, -2], np.float32),
        np.array([0, 0, 0, 2], np.int32),
    )
    extras = replace(batch.sampling.extras, biases=biases)
    return replace(batch, sampling=replace(batch.sampling, extras=extras))


@pytest.mark.parametrize(
    "name",
    ["repetition_penalties", "history_ids", "allowed_masks", "allowed_mask_rows", "targets"],
)
def test_wrong_types_and_layouts_in_the_extras_are_refused(runner, name):
    batch = batch_with_extras()
    array = batch.sampling.extras.arrays()[name]
    for bad in (array.astype(np.float64), np.repeat(array, 2)[::2], array[:-1]):
        if name == "history_ids" or bad.dtype == np.float64 or bad.size != array.size:
            with pytest.raises(RunnerError):
                runner.step(with_array(batch, name, bad))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_damage_to_the_extras_never_crashes(runner, data):
    batch = with_bias(batch_with_extras())
    for _ in range(data.draw(st.integers(1, 3))):
        arrays = batch.sampling.extras.arrays()
        name = data.draw(st.sampled_from(sorted(arrays)))
        array = arrays[name].copy()
        flat = array.reshape(-1)
        index = data.draw(st.integers(0, len(flat) - 1))
        if array.dtype.kind == "f":
            flat[index] = data.draw(st.floats(width=32))
        else:
            info = np.iinfo(array.dtype)
            near = st.integers(
                max(info.min, int(flat[index]) - 2), min(info.max, int(flat[index]) + 2)
            )
            far = (
                st.integers(-5, 300) if name == "num_logprobs" else st.integers(info.min, info.max)
            )
            value = data.draw(near | far)
            flat[index] = min(max(value, info.min), info.max)
        batch = with_array(batch, name, array)
    try:
        drawn, _ = runner.step(batch)
    except RunnerError as error:
        assert error.hint  # noqa: PT017 - either outcome is right, a crash is not
    else:
        assert all(-2 <= token < 160 for token in drawn)


def test_two_tokens_may_not_write_one_slot(runner):
    one = request_with_blocks("one", prompt(1, 10), [2])
    two = request_with_blocks("two", prompt(2, 10), [2])
    with pytest.raises(RunnerError, match="two tokens write slot 137"):
        runner.step(build_batch(plan_of((one, 9, 1, 1), (two, 9, 1, 1)), 64))


@pytest.mark.parametrize("name", ["token_ids", "positions", "slots", "context_lens", "logit_rows"])
def test_wrong_types_lengths_and_layouts_are_refused(runner, name):
    batch = good_batch()
    array = getattr(batch, name)
    wrong = np.float64 if array.dtype != np.int64 else np.int32
    for bad in (
        array.astype(wrong),
        np.repeat(array, 2)[::2],
        array[:, None].copy(),
        np.append(array, array[-1:]),
    ):
        with pytest.raises(RunnerError) as caught:
            runner.step(replace(batch, **{name: bad}))
        assert caught.value.hint


def test_an_empty_step_is_refused(runner):
    with pytest.raises(RunnerError, match="at least one token"):
        runner.step(build_batch(plan_of(), 64))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_damage_never_crashes(runner, data):
    batch = good_batch()
    for _ in range(data.draw(st.integers(1, 3))):
        names = [f.name for f in fields(Batch) if f.name not in {"sampling", "row_spans"}]
        names += [f.name for f in fields(batch.sampling) if f.name not in {"positions", "extras"}]
        name = data.draw(st.sampled_from(names))
        array = getattr(batch.sampling, name) if hasattr(batch.sampling, name) else None
        if array is None or name == "positions":
            array = getattr(batch, name)
        if len(array) == 0:
            continue
        index = data.draw(st.integers(0, len(array) - 1))
        if array.dtype.kind == "f":
            value = data.draw(st.floats(width=32))
        else:
            info = np.iinfo(array.dtype)
            near = st.integers(max(info.min, int(array[index]) - 2), int(array[index]) + 2)
            value = data.draw(near | st.integers(info.min, info.max))
        batch = changed(batch, name, index, value)
    try:
        drawn, _ = runner.step(batch)
    except RunnerError as error:
        assert error.hint  # noqa: PT017 - either outcome is right, a crash is not
    else:
        assert len(drawn) == 3
        assert all(-2 <= token < 160 for token in drawn)


def test_the_runner_survives_all_that(runner):
    tokens = prompt(3, 100)
    want = prefill(native_runner("bf16"), request_with_blocks("r", tokens, [0, 1]), [100])
    runner.poison_kv()
    got = prefill(runner, request_with_blocks("r", tokens, [6, 2]), [100])
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_logits_that_are_not_numbers_name_the_request():
    model = stored_model("F32")
    model.tensors["final_norm"].stored_rows.setflags(write=True)
    model.tensors["final_norm"].float32()[7] = np.nan
    runner = NativeRunner(model, num_blocks=4, weights="bf16", num_threads=1)
    request = request_with_blocks("bad one", prompt(4, 5), [0])
    failed = runner.submit(plan_of((request, 0, 5, 1))).result().failed
    with pytest.raises(RunnerError, match="request bad one: no token can be drawn at position 5"):
        raise failed[0]


def test_a_closed_runner_refuses():
    runner = native_runner("bf16")
    runner.close()
    runner.close()
    request = request_with_blocks("r", prompt(5, 5), [0])
    with pytest.raises(RunnerError, match="closed"):
        runner.submit(plan_of((request, 0, 5, 1))).result()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"block_size": 16}, ConfigError, "block_size is 16"),
        ({"weights": "int5"}, ConfigError, "weights is 'int5'"),
        ({"weights": "int4"}, ConfigError, "weights is 'int4', but tiny-1 holds F32"),
        ({"isa": "sse9"}, ConfigError, "'sse9' cannot be run here"),
    ],
)
def test_options_that_cannot_be_had(options, error, said):
    with pytest.raises(error, match=said) as caught:
        NativeRunner(stored_model("F32"), **({"num_blocks": 4} | options))
    assert caught.value.hint


def test_sizes_that_the_kernels_do_not_take():
    with pytest.raises(ModelError, match="the head size is 8") as caught:
        NativeRunner(tiny_model(1), num_blocks=4)
    assert "reference" in caught.value.hint
