"""Loading: both formats give the same model, and every kind of damage is named."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest

from evenflow.errors import ModelError
from evenflow.model import load
from evenflow.model.load import load_model, resolve_model
from helpers.model_files import write_folder, write_gguf
from helpers.tiny_model import tiny_model

UNTIED = {"tied_embeddings": False, "num_kv_heads": 1, "head_dim": 16}


@pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("write", [write_gguf, write_folder])
def test_a_model_comes_back_as_it_was(tmp_path, write, changes):
    model = tiny_model(1, **changes)
    loaded = load_model(write(tmp_path / "m.gguf", model))
    assert loaded.tensors.keys() == model.tensors.keys()
    for name, tensor in loaded.tensors.items():
        assert tensor.name == name
        assert np.array_equal(tensor.float32(), model.tensors[name].float32()), name
    expected = {f: getattr(model.spec, f) for f in model.spec.__dataclass_fields__}
    found = {f: getattr(loaded.spec, f) for f in loaded.spec.__dataclass_fields__}
    if write is write_folder:
        expected["name"] = "m.gguf"  # a folder goes by its own name, whatever that looks like
    expected["rms_norm_eps"] = pytest.approx(1e-5)  # GGUF holds a float32
    assert found == expected
    assert loaded.weight_bytes == loaded.spec.weight_bytes(4)
    assert loaded.is_gguf == (write is write_gguf)


def test_a_tied_folder_may_carry_a_copy_of_its_embedding_as_head(tmp_path):
    model = tiny_model(1, tied_embeddings=False)
    loaded = load_model(write_folder(tmp_path / "m", model, tie_word_embeddings=True))
    assert loaded.spec.tied_embeddings
    assert "head" not in loaded.tensors


def test_packed_q_and_k_rows_move_as_whole_rows(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    # a down of 48 columns is not a whole number of blocks, so this model is wider
    model = tiny_model(2, intermediate_size=64)
    loaded = load_model(write_gguf(tmp_path / "m.gguf", model, quantization=kind))
    for name in ("layers.0.q", "layers.1.k", "layers.1.v", "embed"):
        values = np.array(model.tensors[name].float32())
        assert loaded.tensors[name].type.name == "Q8_0"
        assert loaded.tensors[name].rows().tobytes() == gguf.quantize(values, kind).tobytes()


def test_rope_of_a_gguf_file(tmp_path):
    model = tiny_model(1)
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    rope = load_model(write_gguf(tmp_path / "a.gguf", model, keys=linear)).spec.rope
    assert (rope.kind, rope.factor) == ("linear", 2.5)
    older = {"llama.rope.scale_linear": 3.0}
    rope = load_model(write_gguf(tmp_path / "b.gguf", model, keys=older)).spec.rope
    assert (rope.kind, rope.factor) == ("linear", 3.0)
    divisors = {"rope_freqs.weight": np.array([1, 1, 2, 8], np.float32)}
    rope = load_model(write_gguf(tmp_path / "c.gguf", model, extra=divisors)).spec.rope
    assert (rope.kind, rope.freq_divisors) == ("llama3", (1, 1, 2, 8))
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.attn_factor": 0.5,
    }
    rope = load_model(write_gguf(tmp_path / "d.gguf", model, keys=yarn)).spec.rope
    assert (rope.kind, rope.factor, rope.original_context_length) == ("yarn", 4.0, 128)
    assert rope.attention_factor == pytest.approx(0.5 * (0.1 * np.log(4) + 1))
    unknown = {"llama.rope.scaling.type": "ntk"}
    with pytest.raises(ModelError, match="RoPE scaling 'ntk'"):
        load_model(write_gguf(tmp_path / "e.gguf", model, keys=unknown))
    short = {"rope_freqs.weight": np.ones(3, np.float32)}
    with pytest.raises(ModelError, match="3 divisors for RoPE, but 4 pairs"):
        load_model(write_gguf(tmp_path / "f.gguf", model, extra=short))


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("changes", "kind", "theta"),
    [
        ({}, "none", 10000.0),
        ({"rope_theta": None}, "none", 10000.0),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "linear", 10000.0),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5}, "llama3", 5e5),
        (
            {
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
                "rope_theta": None,
            },
            "llama3",
            5e5,
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": None},
         "none", 7.0),
    ],
)  # fmt: skip
def test_rope_of_a_folder_in_both_spellings(tmp_path, changes, kind, theta):
    rope = load_model(write_folder(tmp_path / "m", tiny_model(1), **changes)).spec.rope
    assert (rope.kind, rope.theta) == (kind, theta)
    assert rope.factor == (1.0 if kind == "none" else 8.0)
    assert rope.original_context_length == (64 if kind == "llama3" else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM'"),
        ({"architectures": None}, "architecture None"),
        ({"architectures": "Mamba"}, "architecture 'Mamba'"),
        ({"hidden_size": None}, "does not give hidden_size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers as 'two'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps as -1.0"),
        ({"attention_bias": True}, "attention_bias as True, but only False"),
        ({"hidden_act": "gelu"}, "hidden_act as 'gelu', but only 'silu'"),
        ({"num_key_value_heads": 3}, "4 query heads, which 3 KV heads"),
        ({"head_dim": 7}, "turns 7 of 7 dimensions of a head"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "RoPE scaling 'ntk'"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "does not give factor"),
        ({"partial_rotary_factor": 0.4}, "turns 3 of 8 dimensions"),
        ({"vision_config": {}}, "reads more than text"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"intermediate_size": 50}, r"gate_proj.weight is of shape \(48, 32\).*\(50, 32\)"),
        ({"num_hidden_layers": 3}, r"no tensor model.layers.2.*of shape \(32,\)"),
        ({"num_hidden_layers": 1}, r"a tensor model.layers.1\..*does not use"),
        ({"tie_word_embeddings": False}, r"no tensor lm_head.weight.*\(64, 32\)"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, changes, message):
    folder = write_folder(tmp_path / "m", tiny_model(1), **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert str(folder) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"keys": {"llama.block_count": None}}, "does not give llama.block_count"),
        ({"keys": {"llama.rope.dimension_count": 4}}, "dimension_count as 4, but only 8"),
        ({"keys": {"llama.expert_count": 8}}, "a mixture of 8 experts"),
        ({"keys": {"llama.block_count": 3}}, r"no tensor blk.2.attn_norm.weight.*\(32,\)"),
        (
            {"extra": {"blk.0.attn_q.weight": np.zeros((16, 32), np.float32)}},
            r"attn_q.weight is of shape \(16, 32\).*\(32, 32\)",
        ),
        (
            {"extra": {"blk.0.attn_q.bias": np.zeros(32, np.float32)}},
            r"blk.0.attn_q.bias of shape \(32,\).*llama family does not use",
        ),
    ],
)
def test_a_gguf_file_that_does_not_fit_is_refused(tmp_path, changes, message):
    path = write_gguf(tmp_path / "m.gguf", tiny_model(1), **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_of_a_folder_is_named(tmp_path, missing):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=f"has no {missing}"):
        load_model(folder)


def test_json_that_is_broken_or_no_object_is_refused(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        load_model(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds a list, not an object"):
        load_model(folder)


def test_weights_that_are_missing_or_ambiguous_are_refused(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    weights = folder / "model.safetensors"
    weights.rename(folder / "a.safetensors")
    load_model(folder)  # one file of another name will do
    (folder / "b.safetensors").write_bytes(b"")
    with pytest.raises(
        ModelError, match=r"2 \*\.safetensors files and no model\.safetensors\.index"
    ):
        load_model(folder)


def test_a_missing_shard_is_named_with_what_it_holds(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    index = {"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"has no gone.safetensors, .* for 1 of 2 tensors"):
        load_model(folder)


def test_a_safetensors_file_cut_short_is_refused(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    for size in (0, 7, 8, 100, header_end - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="not a whole safetensors file"):
            load_model(folder)
    for size in (header_end, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut short: tensor \S+ ends at .*the file has"):
            load_model(folder)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "unsupported type F8_E4M3"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, r"\(3,\) needs 12 .* covers 8"),
        ({"dtype": "F32", "shape": [3]}, "its entry for w"),
        ("w", "its entry for w"),
    ],
)
def test_a_wrong_safetensors_entry_is_refused(tmp_path, entry, message):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    header = json.dumps({"w": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(64)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_names_and_paths_are_resolved(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", tiny_model(1))
    assert resolve_model(str(path)) == path
    assert resolve_model(tmp_path) == tmp_path
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(tmp_path / "gone.gguf")
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"m\.bin is not a \.gguf file"):
        resolve_model(tmp_path / "m.bin")
    monkeypatch.setitem(load.PACKAGED_MODELS, "smollm2", ("no_such_package", "x.gguf"))
    with pytest.raises(ModelError, match="smollm2 are not installed") as caught:
        resolve_model("smollm2")
    assert caught.value.hint == "evenflow pull smollm2"


def test_a_packaged_model_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "breaks_on_import"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    write_gguf(package / "w.gguf", tiny_model(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(load.PACKAGED_MODELS, "packed", ("breaks_on_import", "w.gguf"))
    assert resolve_model("packed") == package / "w.gguf"
