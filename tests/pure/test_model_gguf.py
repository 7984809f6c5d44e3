"""The GGUF parser: agrees with the gguf package, and says what is wrong with a bad file."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from evenflow.errors import ModelError
from evenflow.model.gguf import read_gguf
from helpers.model_files import write_gguf
from helpers.tiny_model import tiny_model

VALUES = {
    "a.u8": (gguf.GGUFValueType.UINT8, 250),
    "a.i8": (gguf.GGUFValueType.INT8, -100),
    "a.u16": (gguf.GGUFValueType.UINT16, 65000),
    "a.i16": (gguf.GGUFValueType.INT16, -30000),
    "a.u32": (gguf.GGUFValueType.UINT32, 4_000_000_000),
    "a.i32": (gguf.GGUFValueType.INT32, -5),
    "a.u64": (gguf.GGUFValueType.UINT64, 2**63 + 1),
    "a.i64": (gguf.GGUFValueType.INT64, -(2**62)),
    "a.f32": (gguf.GGUFValueType.FLOAT32, 0.5),
    "a.f64": (gguf.GGUFValueType.FLOAT64, 0.1),
    "a.yes": (gguf.GGUFValueType.BOOL, True),
    "a.text": (gguf.GGUFValueType.STRING, "Ġ naïve 字"),
}
ARRAYS = {
    "b.words": ["Ġt", "", "é", "字 字"],
    "b.ints": [3, -1, 7],
    "b.floats": [0.5, -2.0],
    "b.flags": [True, False],
}


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in VALUES.items():
        writer.add_key_value(key, value, kind)
    for key, value in ARRAYS.items():
        writer.add_array(key, value)
    rng = np.random.default_rng(0)
    writer.add_tensor("plain", rng.normal(size=(3, 5)).astype(np.float32))
    writer.add_tensor("vector", np.arange(7, dtype=np.float32))
    packed = gguf.quantize(
        rng.normal(size=(4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1
    )
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_agrees_with_the_package(path):
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    wanted = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == wanted
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert found.type.name == tensor.tensor_type.name
        assert found.rows.tobytes() == tensor.data.tobytes()


def test_every_value_and_tensor_is_read_as_the_package_reads_it(small):
    assert_agrees_with_the_package(small)
    file = read_gguf(small)
    for key, (_, value) in VALUES.items():
        assert file.metadata[key] == value
        assert type(file.metadata[key]) is type(value)
    for key, value in ARRAYS.items():
        assert file.metadata[key] == value


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_is_read_as_the_package_reads_it():
    from evenflow.model.load import resolve_model

    try:
        path = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(f"{error}: {error.hint}")
    assert_agrees_with_the_package(path)


def test_the_tensors_are_views_of_the_file_and_read_only(small):
    rows = read_gguf(small).tensors["packed"].rows
    assert not rows.flags.owndata
    assert not rows.flags.writeable


def test_a_file_cut_anywhere_is_refused_with_both_sizes(small, tmp_path):
    whole = small.read_bytes()
    last = read_gguf(small).tensors["packed"].rows
    needed = whole.index(last.tobytes()) + last.nbytes
    cut = tmp_path / "cut.gguf"
    for size in range(4, needed):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=rf"cut\.gguf is cut short.*{size:,}"):
            read_gguf(cut)
    cut.write_bytes(whole[:needed])
    assert read_gguf(cut).tensors["packed"].rows.tobytes() == last.tobytes()


def test_a_cut_in_the_weights_names_the_tensor(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", tiny_model(0))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"tensor blk\.\d\.\S+ ends at [\d,]+ bytes") as caught:
        read_gguf(path)
    assert f"{len(whole) // 2:,}" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("head", [b"", b"GG", b"GGML", b"PK\x03\x04 and more"])
def test_another_kind_of_file_is_refused(tmp_path, head):
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_gguf(path)


def overwritten(path, at, number, width):
    data = bytearray(path.read_bytes())
    data[at : at + width] = number.to_bytes(width, "little")
    path.write_bytes(data)
    return path


def test_an_unknown_version_is_refused(small):
    with pytest.raises(ModelError, match="version 7, but versions 2 and 3"):
        read_gguf(overwritten(small, 4, 7, 4))


def test_an_unsupported_tensor_type_names_the_tensor_and_lists_the_others(small):
    at = small.read_bytes().index(b"packed") + 6 + 4 + 2 * 8
    with pytest.raises(ModelError, match=r"tensor packed .* type number 99") as caught:
        read_gguf(overwritten(small, at, 99, 4))
    assert "Q4_K" in caught.value.hint


@pytest.mark.parametrize("name", ["Q8_1", "Q8_K", "I32"])
def test_a_type_that_cannot_be_expanded_goes_by_its_name(small, name):
    at = small.read_bytes().index(b"packed") + 6 + 4 + 2 * 8
    number = gguf.GGMLQuantizationType[name].value
    with pytest.raises(ModelError, match=rf"unsupported type {name} \(number {number}\)"):
        read_gguf(overwritten(small, at, number, 4))


def test_rows_that_no_block_fills_are_refused(small):
    at = small.read_bytes().index(b"packed") + 6 + 4
    with pytest.raises(ModelError, match="rows of 65 values, but Q4_1 packs 32"):
        read_gguf(overwritten(small, at, 65, 8))


def test_a_wild_number_of_dimensions_is_refused(small):
    at = small.read_bytes().index(b"packed") + 6
    with pytest.raises(ModelError, match="tensor packed has 9 dimensions"):
        read_gguf(overwritten(small, at, 9, 4))


def test_an_unknown_value_type_names_the_key(small):
    at = small.read_bytes().index(b"a.u32") + 5
    with pytest.raises(ModelError, match=r"key a\.u32 has the unknown value type 77"):
        read_gguf(overwritten(small, at, 77, 4))


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40])
def test_a_wild_length_is_a_cut_file_not_a_crash(small, length):
    at = small.read_bytes().index(b"a.text") + 6 + 4
    with pytest.raises(ModelError, match="cut short"):
        read_gguf(overwritten(small, at, length, 8))


@pytest.mark.parametrize("length", [2**64 - 1, 2**40])
@pytest.mark.parametrize("key", ["b.words", "b.ints"])
def test_a_wild_array_is_a_cut_file_not_a_crash(small, key, length):
    at = small.read_bytes().index(key.encode()) + len(key) + 4 + 4
    with pytest.raises(ModelError, match=r"cut short|not UTF-8"):
        read_gguf(overwritten(small, at, length, 8))


def test_text_that_is_not_utf8_is_refused(small):
    at = small.read_bytes().index(b"general.architecture")
    with pytest.raises(ModelError, match="not UTF-8"):
        read_gguf(overwritten(small, at, 0xFF, 1))


def test_a_zero_alignment_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", tiny_model(0), keys={"general.alignment": 0})
    with pytest.raises(ModelError, match=r"general\.alignment is 0"):
        read_gguf(path)
