"""Models in several files, and folders whose weights are packed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evenflow.errors import ModelError
from evenflow.model.load import load_model
from helpers.model_files import write_folder, write_gguf
from helpers.tiny_model import tiny_model


@pytest.fixture
def parts(tmp_path):
    """The tiny model in three parts, as the gguf package writes them."""
    write_gguf(tmp_path / "m.gguf", tiny_model(1), split_max_tensors=8)
    found = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in found] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def assert_is_the_tiny_model(loaded):
    model = tiny_model(1)
    assert loaded.tensors.keys() == model.tensors.keys()
    for name, tensor in loaded.tensors.items():
        assert np.array_equal(tensor.float32(), model.tensors[name].float32()), name


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_stands_for_the_whole_model(parts, given):
    assert_is_the_tiny_model(load_model(parts[given]))


def test_missing_parts_are_named(parts):
    parts[1].unlink()
    with pytest.raises(
        ModelError, match=r"one of 3 parts .* 1 are missing: m-00002-of-00003\.gguf"
    ):
        load_model(parts[0])
    parts[0].unlink()
    with pytest.raises(ModelError, match=r"2 are missing: m-00001-of-00003\.gguf, m-00002"):
        load_model(parts[2])


def test_a_part_under_another_name_is_refused(parts, tmp_path):
    alone = parts[0].rename(tmp_path / "whole.gguf")
    with pytest.raises(ModelError, match="one of 3 parts of a model, but its name") as caught:
        load_model(alone)
    assert "NAME-00001-of-00003.gguf" in caught.value.hint


def test_swapped_parts_are_refused(parts):
    first, second = parts[0].read_bytes(), parts[1].read_bytes()
    parts[0].write_bytes(second)
    parts[1].write_bytes(first)
    with pytest.raises(ModelError, match=r"says that it is part 1 of 3 .* name says part 0 of 3"):
        load_model(parts[2])


def test_a_part_of_another_model_is_refused(parts, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_gguf(other / "m.gguf", tiny_model(2, num_layers=3), split_max_tensors=11)
    (other / "m-00002-of-00003.gguf").rename(parts[1])
    with pytest.raises(ModelError, match=r"hold 23 tensors, \d+ of them different, .* hold 20"):
        load_model(parts[0])


@pytest.fixture
def shards(tmp_path):
    """A folder whose tensors lie in two shards."""
    folder = write_folder(tmp_path / "m", tiny_model(1))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for shard, held in (("a.safetensors", names[:7]), ("b.safetensors", names[7:])):
        save_file({name: tensors[name] for name in held}, folder / shard)
        weight_map |= dict.fromkeys(held, shard)
    write_index(folder, weight_map)
    return folder, weight_map


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_one_model(shards):
    assert_is_the_tiny_model(load_model(shards[0]))


def test_a_missing_shard_is_named(shards):
    (shards[0] / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no b\.safetensors, .* for 13 of 20 tensors"):
        load_model(shards[0])


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(shards):
    folder, weight_map = shards
    name = next(iter(weight_map))
    write_index(folder, weight_map | {name: "b.safetensors"})
    with pytest.raises(ModelError, match=rf"{name} is in a\.safetensors, but .* says b\.safetens"):
        load_model(folder)


def test_a_tensor_that_no_shard_has_is_refused(shards):
    folder, weight_map = shards
    write_index(folder, weight_map | {"extra": "a.safetensors"})
    with pytest.raises(ModelError, match=r"a\.safetensors has no tensor extra, which .* says"):
        load_model(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": 3}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map_is_refused(shards, index):
    (shards[0] / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no weight_map from tensors to files"):
        load_model(shards[0])


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, r"gptq \(4 bits\)"),
        ({"quant_method": "awq", "w_bit": 4}, r"awq \(4 bits\)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"bitsandbytes \(4 bits\)"),
        ({"load_in_8bit": True}, r"bitsandbytes \(8 bits\)"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_algo": "NVFP4"}, "NVFP4"),
        ("odd", "'odd'"),
    ],
)
def test_packed_weights_are_refused_with_what_to_take_instead(tmp_path, config, method):
    folder = write_folder(tmp_path / "m", tiny_model(1), quantization_config=config)
    with pytest.raises(ModelError, match=f"are quantised with {method}, which") as caught:
        load_model(folder)
    assert "GGUF" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "method"), [("quantize_config.json", "gptq"), ("quant_config.json", "awq")]
)
def test_older_quantisers_are_known_by_their_file(tmp_path, file, method):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    (folder / file).write_text("{}")
    with pytest.raises(ModelError, match=f"are quantised with {method}, which"):
        load_model(folder)


def test_a_folder_with_only_a_sentencepiece_file_gets_a_hint(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_model(1))
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(ModelError, match=r"has no tokenizer\.json") as caught:
        load_model(folder)
    assert "tokenizer.model alone is not read" in caught.value.hint
