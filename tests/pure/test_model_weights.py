"""Number formats: sizes, values, and rows that move."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from evenflow.errors import ModelError
from evenflow.model import weights
from evenflow.model.weights import WEIGHT_TYPES, WeightTensor, WeightType

QUANTISED = [t for t in WEIGHT_TYPES.values() if t.block_values > 1]
PACKABLE = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
]  # others it only expands


def dequantized(rows, kind):
    with np.errstate(invalid="ignore", over="ignore"):
        return gguf.dequantize(rows, gguf.GGMLQuantizationType(kind.gguf_id))


@pytest.mark.parametrize("kind", WEIGHT_TYPES.values(), ids=lambda k: k.name)
def test_sizes_are_those_of_ggml(kind):
    number = gguf.GGMLQuantizationType[kind.name]
    assert kind.gguf_id == number
    assert (kind.block_values, kind.block_bytes) == gguf.GGML_QUANT_SIZES[number]


def can_expand(kind):
    rows = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        gguf.dequantize(rows, kind)
    except NotImplementedError:
        return False
    return True


def test_every_format_that_the_package_can_expand_is_read():
    expandable = {kind.name for kind in gguf.GGMLQuantizationType if can_expand(kind)}
    assert expandable <= WEIGHT_TYPES.keys()
    assert WEIGHT_TYPES.keys() - expandable == {"F64"}  # which needs no expanding


@pytest.mark.parametrize("name", PACKABLE)
def test_what_the_package_packs_comes_back(name):
    values = np.random.default_rng(1).normal(size=(5, 512)).astype(np.float32)
    number = gguf.GGMLQuantizationType[name]
    rows = gguf.quantize(values, number)
    found = WeightTensor("w", (5, 512), WEIGHT_TYPES[name], rows).float32()
    assert np.array_equal(found, gguf.dequantize(rows, number))
    assert np.corrcoef(found.ravel(), values.ravel())[0, 1] > 0.6  # ternary types keep least


def test_a_format_that_the_installed_package_does_not_know_is_named(monkeypatch):
    kind = WeightType("Q9_Z", 250, 32, 4)
    monkeypatch.setitem(weights.WEIGHT_TYPES, "Q9_Z", kind)
    with pytest.raises(ModelError, match="gguf package cannot expand weights of type Q9_Z"):
        WeightTensor("w", (2, 32), kind, np.zeros((2, 4), np.uint8)).float32()


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda k: k.name)
def test_packed_values_are_those_of_the_package_in_the_right_row_order(kind):
    # random bytes are valid blocks of every packed format; a scale may be NaN, and stays it
    rows = np.random.default_rng(0).integers(0, 256, (6, kind.row_bytes(512)), np.uint8)
    order = np.array([3, 0, 5, 1, 4, 2])
    wanted = dequantized(rows, kind)
    plain = WeightTensor("w", (6, 512), kind, rows)
    moved = WeightTensor("w", (6, 512), kind, rows, order)
    assert plain.float32().dtype == np.float32
    assert np.array_equal(plain.float32(), wanted, equal_nan=True)
    assert np.array_equal(moved.float32(), wanted[order], equal_nan=True)
    assert moved.num_bytes == rows.nbytes


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "F64"])
def test_float_values(name):
    values = np.array([[1.5, -2.0, 0.0], [3.0, 0.15625, -0.5]], np.float32)  # exact in all three
    stored = {
        "F32": values,
        "F16": values.astype(np.float16),
        "F64": values.astype(np.float64),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }[name]
    tensor = WeightTensor("w", (2, 3), WEIGHT_TYPES[name], stored.view(np.uint8))
    assert np.array_equal(tensor.float32(), values)


def test_a_vector_has_its_own_shape_and_f32_is_not_copied():
    stored = np.arange(5, dtype=np.float32)
    tensor = WeightTensor("w", (5,), WEIGHT_TYPES["F32"], stored.view(np.uint8)[None])
    assert tensor.float32().shape == (5,)
    assert np.shares_memory(tensor.float32(), stored)
