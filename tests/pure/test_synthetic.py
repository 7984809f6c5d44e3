"""Models of random weights: what is written, and what a broken run leaves."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections import namedtuple

import numpy as np
import pytest

from evenflow.cli import pull_random
from evenflow.cli.main import main
from evenflow.errors import ModelError
from evenflow.model.load import load_model, resolve_model
from evenflow.model.places import random_name
from evenflow.model.shapes import FORMATS, SHAPES
from evenflow.model.weights import WEIGHT_TYPES, WeightTensor
from evenflow.runner.reference import ReferenceRunner
from evenflow.synthetic import write
from evenflow.synthetic.draw import STD, draw_rows
from evenflow.synthetic.tokens import tokenizer_keys
from evenflow.synthetic.write import write_random
from evenflow.text.tokenizer import Tokenizer
from helpers.driving import prefill, request_with_blocks
from helpers.texts import tiny_metadata


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """A folder of its own for every test, and no tokenizer to borrow."""
    folder = tmp_path / "models"
    monkeypatch.setenv("EVENFLOW_MODELS", str(folder))
    monkeypatch.setattr(pull_random, "TOKENIZER_OF", str(tmp_path / "none.gguf"))
    return folder


def write_tiny(form="bf16", *, seed=0, wrote=lambda *_: None):
    name = random_name(f"random:tiny:{form}")
    return write_random(name, SHAPES["tiny"], tokenizer_keys(512, None), seed=seed, wrote=wrote)


@pytest.mark.parametrize("form", FORMATS)
def test_the_weights_are_normal_in_every_format(form):
    rows = draw_rows(np.random.default_rng(0), form, 300, 1024)
    kind = WEIGHT_TYPES[form.upper()]
    values = WeightTensor("w", (300, 1024), kind, rows).float32().ravel()
    assert abs(values.mean()) < STD / 100
    assert values.std() == pytest.approx(STD, rel=0.03)
    inside = [np.mean(np.abs(values) < k * STD) for k in (1, 2)]
    assert inside == pytest.approx([0.683, 0.954], abs=0.03)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_loads_and_its_logits_are_finite_and_vary(form):
    model = load_model(write_tiny(form))
    assert {t.type.name for t in model.tensors.values()} == {"F32", form.upper()}
    assert model.spec.num_params() == SHAPES_PARAMS["tiny"]
    runner = ReferenceRunner(model, num_blocks=2, block_size=16)
    logits = prefill(runner, request_with_blocks("r", [3, 200, 511, 7], [0]), [4])
    assert np.isfinite(logits).all()
    assert logits.std(axis=-1).min() > 0.05
    assert len(set(logits.argmax(axis=-1))) > 1


def test_the_same_seed_gives_the_same_weights_whatever_the_tokenizer():
    first = {n: t.stored_rows.copy() for n, t in load_model(write_tiny(seed=5)).tensors.items()}
    name = random_name("random:tiny")
    other = tokenizer_keys(512, tiny_metadata())
    path = write_random(name, SHAPES["tiny"], other, seed=5, wrote=lambda *_: None)
    again = load_model(path).tensors
    assert all(np.array_equal(first[n], t.stored_rows) for n, t in again.items())
    changed = load_model(write_tiny(seed=6)).tensors
    assert not np.array_equal(first["embed"], changed["embed"].stored_rows)


SHAPES_PARAMS = {
    "tiny": 106_816,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
}


@pytest.mark.parametrize("shape", SHAPES_PARAMS)
def test_a_shape_has_as_many_parameters_as_the_model_it_is_named_after(shape):
    planned = write._plan(SHAPES[shape], random_name(f"random:{shape}"))
    sizes = {t.name: int(np.prod(t.shape)) for t in planned if t.name != "rope_freqs.weight"}
    assert sum(sizes.values()) == SHAPES_PARAMS[shape]


def test_eight_billion_weights_fit_a_small_machine():
    name = random_name("random:llama-3.1-8b")
    assert name.format == "q4_0"
    assert sum(t.num_bytes for t in write._plan(SHAPES[name.shape], name)) < 4.6e9


def test_rope_divisors_are_those_of_a_converted_file():
    divisors = SHAPES["llama-3.2-1b"].freq_divisors()
    assert len(divisors) == 32
    assert divisors[0] == 1.0
    assert divisors[-1] == pytest.approx(32.0)
    assert list(divisors) == sorted(divisors)


def test_a_tokenizer_has_the_size_of_the_vocabulary():
    alone = Tokenizer.from_gguf(tokenizer_keys(512, None))
    borrowed = Tokenizer.from_gguf(tokenizer_keys(300, tiny_metadata()))
    too_large = Tokenizer.from_gguf(tokenizer_keys(275, {"tokenizer.ggml.tokens": ["x"] * 276}))
    assert [t.vocab_size for t in (alone, borrowed, too_large)] == [512, 300, 275]
    for tokenizer in (alone, borrowed):
        text = "Hello, the 日本 <|im_end|>\n"
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
        assert tokenizer.decode([299]) == " [299]"
    assert len(alone.encode("and the")) == 4  # three bytes and a word
    assert alone.encode("[299]") != [299]


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch, models):
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - shutil's own is one
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 1_500_000))
    with pytest.raises(ModelError, match=r"needs 0\.03 GB in .*, which has 0\.00 GB free"):
        write_tiny()
    assert list(models.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_broken_run_leaves_nothing(models, error):
    def stop(done, total):
        if done > total / 2:
            raise error

    with pytest.raises(error):
        write_tiny(wrote=stop)
    assert list(models.iterdir()) == []
    assert write_tiny().is_file()


def test_what_a_killed_run_left_is_overwritten(models):
    models.mkdir()
    (models / "random-tiny-bf16.part").write_bytes(b"x" * 10_000_000)
    path = write_tiny()
    assert path.stat().st_size < 1_000_000
    assert list(models.iterdir()) == [path]


def test_two_runs_do_not_write_the_same_file(models):
    models.mkdir()
    with (models / "random-tiny-bf16.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="is being written by another process"):
            write_tiny()


def test_progress_counts_the_bytes_of_all_weights():
    seen = []
    write_tiny(wrote=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    total = seen[-1][1]
    assert seen[-1] == (total, total)
    assert total == load_model("random:tiny").weight_bytes


def test_names(models):
    assert random_name("smollm2") is None
    assert str(random_name("random:llama-3.2-1b")) == "random:llama-3.2-1b:bf16"
    assert random_name("random:llama-3.2-1b:q4_0").path().parent == models
    with pytest.raises(ModelError, match="no shape 'gpt-9'") as caught:
        random_name("random:gpt-9")
    assert "random:llama-3.1-8b" in caught.value.hint
    with pytest.raises(ModelError, match="type 'q9'") as caught:
        random_name("random:tiny:q9")
    assert "q4_1" in caught.value.hint
    with pytest.raises(ModelError, match="does not exist yet") as caught:
        resolve_model("random:tiny")
    assert caught.value.hint == "evenflow pull random:tiny:bf16"


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("EVENFLOW_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert random_name("random:tiny").path().parent == tmp_path / "evenflow" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = tmp_path / "home" / ".cache" / "evenflow" / "models"
    assert random_name("random:tiny").path().parent == expected


def test_the_command(capfd):
    assert main(["pull", "random:tiny", "--seed", "3"]) == 0
    assert "random weights (seed 3)" in capfd.readouterr().err
    assert main(["pull", "random:tiny"]) == 0
    assert "is there already" in capfd.readouterr().err
    assert main(["pull", "random:tiny", "--seed", "4"]) == 1
    assert "with seed 3, not 4" in capfd.readouterr().err
    assert main(["pull", "random:nope"]) == 1
    assert main(["pull", "smollm2", "--seed", "4"]) == 2
    assert "has no effect" in capfd.readouterr().err


def test_a_terminated_command_leaves_nothing(capfd, monkeypatch, models):
    def terminated(*_, wrote, **__):
        return write_tiny(wrote=lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pull_random, "write_random", terminated)
    assert main(["pull", "random:tiny"]) == 130
    assert list(models.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_generate_warns_that_the_text_means_nothing(capfd):
    assert main(["pull", "random:tiny"]) == 0
    options = ["--model", "random:tiny", "--max-tokens", "3", "--runner", "reference"]
    assert main(["generate", "hello", *options]) == 0
    assert "warning: the weights of random:tiny:bf16 are random" in capfd.readouterr().err
