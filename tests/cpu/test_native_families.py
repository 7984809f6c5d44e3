"""What sets families apart, on the native runner: in every weight format, over long contexts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow import _native
from evenflow.errors import ModelError
from evenflow.model.load import Model
from evenflow.model.rope import RopeSpec
from evenflow.runner.native import NativeRunner
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, prefill, request_with_blocks
from helpers.native_models import FORMATS, native_runner, prompt, stored_model
from helpers.tiny_model import tiny_model

LENGTH = 700
VARIANTS = {
    "bias, norms after": {
        "qkv_bias": True,
        "qk_norm": "all",
        "pre_norms": False,
        "post_norms": True,
    },
    "caps, GELU, norms around": {
        "qk_norm": "head",
        "post_norms": True,
        "activation": "gelu_tanh",
        "windows": (70, 0),
        "local_rope": RopeSpec(theta=100.0),
        "attention_soft_cap": 4.0,
        "logit_soft_cap": 9.0,
        "embedding_scale": 8.0,
        "attention_scale": 0.2,
    },
    "scales, a layer without RoPE": {
        "embedding_scale": 3.0,
        "residual_scale": 0.3,
        "logit_scale": 0.4,
        "unrotated_layers": (1,),
        "windows": (600, 130),
    },
    "a part of each head turns": {
        "rope": RopeSpec(rotary_dim=12, attention_factor=1.3),
        "qkv_bias": True,
        "windows": (0, 513),
    },
}
# those of the differences that need other tensors, or each other
NOT_ALONE = ("qkv_bias", "qk_norm", "pre_norms", "post_norms", "local_rope")
ALL = pytest.mark.parametrize("variant", VARIANTS)
FORMAT = pytest.mark.parametrize("format_name", FORMATS)


def request(first_block=0):
    blocks = range(first_block, first_block + LENGTH // 64 + 1)
    return request_with_blocks("r", prompt(1, LENGTH), blocks)


@ALL
@FORMAT
@pytest.mark.parametrize("isa", _native.runnable_isas())
def test_close_to_the_reference(variant, format_name, isa):
    changes = VARIANTS[variant]
    model = stored_model(FORMATS[format_name][1], **changes)
    reference = ReferenceRunner(model, num_blocks=16, block_size=64)
    want = prefill(reference, request(), [LENGTH])
    got = prefill(native_runner(format_name, isa=isa, changes=changes), request(), [LENGTH])
    if format_name == "f32":
        assert np.abs(got - want).max() <= 2e-4 * np.abs(want).max()
    else:
        error = np.sqrt(((got - want) ** 2).mean())
        assert error <= 0.03 * np.sqrt((want**2).mean())


@ALL
@FORMAT
def test_chunks_give_the_bits_of_one_pass(variant, format_name):
    runner = native_runner(format_name, changes=VARIANTS[variant])
    whole = prefill(runner, request(), [LENGTH])
    assert np.isfinite(whole).all()
    for chunks in (cut(LENGTH, 64), cut(LENGTH, 97), [650, *[1] * 30, 20]):
        runner.poison_kv()
        chunked = prefill(runner, request(20), chunks)
        assert np.array_equal(chunked.view(np.uint32), whole.view(np.uint32))


@ALL
def test_each_difference_makes_one(variant):
    # the control: a field that a runner forgot would change nothing
    plain = stored_model("F32")

    def last_logits(spec):
        model = Model(spec, plain.tensors, {}, plain.path)
        for runner in (
            ReferenceRunner(model, num_blocks=16, block_size=64),
            NativeRunner(model, num_blocks=16, weights="f32"),
        ):
            yield prefill(runner, request(), [LENGTH])[-1]

    base = list(last_logits(plain.spec))
    for name, value in VARIANTS[variant].items():
        if name not in NOT_ALONE:
            changed = last_logits(replace(plain.spec, **{name: value}))
            for got, without in zip(changed, base, strict=True):
                assert np.abs(got - without).max() > 1e-3, name


def test_a_layer_that_does_not_fit_is_refused():
    native = native_runner("f32")._open()
    with pytest.raises(ValueError, match="there is no number 'speed'"):
        native.set_number("speed", 1.0)
    with pytest.raises(ValueError, match="there is no layer 2"):
        native.set_layer(2, 0, 0)
    table = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="34 of 32 dimensions cannot turn"):
        native.add_rope(table, table, 34)
    with pytest.raises(ValueError, match="RoPE tables differ in positions"):
        native.add_rope(table, table, 16)
    native.set_layer(1, 0, 3)
    with pytest.raises(ValueError, match="a layer's RoPE table is 0, but"):
        native.pack()


def test_heads_that_are_too_wide_are_refused():
    wide = tiny_model(1, hidden_size=32, head_dim=272, num_heads=1, num_kv_heads=1)
    with pytest.raises(ModelError, match=r"the head size is 272, but .* at most 256"):
        NativeRunner(wide, num_blocks=1)
