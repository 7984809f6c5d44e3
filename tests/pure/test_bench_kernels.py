"""`evenflow bench kernels`: its flags, its table and its JSON; the figures themselves are for people."""

from __future__ import annotations

import json

import pytest

from evenflow.bench.kernels.rows import Row
from evenflow.cli import bench_kernels
from evenflow.cli.main import main

_native = pytest.importorskip("evenflow._native", reason="built without a compiler")


def evenflow(capsys, *words) -> tuple[int, str, str]:
    code = main([str(w) for w in words])
    return code, *capsys.readouterr()


def test_a_rate_wants_a_least_ratio_and_a_time_a_largest_one():
    assert Row("a", "GFLOP/s", 100.0, 88.0, 0.88).reached
    assert not Row("a", "GFLOP/s", 100.0, 87.0, 0.88).reached
    assert Row("a", "ms", 100.0, 102.0, 1.02, at_most=True).reached
    assert not Row("a", "ms", 100.0, 103.0, 1.02, at_most=True).reached
    assert Row("a", "ms", 100.0, 103.0).reached is None


def test_help_names_the_command_and_the_command_has_its_own_help(capsys):
    code, out, _ = evenflow(capsys, "bench", "--help")
    assert code == 0
    assert "evenflow bench kernels" in out
    code, out, _ = evenflow(capsys, "bench", "kernels", "--help")
    assert code == 0
    assert "Usage: evenflow bench kernels" in out
    assert "--base-url" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--weights", "int3"), "--weights is 'int3'"),
        (("--isa", "mmx"), "instruction set 'mmx' cannot be run here"),
        (("--threads", "0"), "--threads is 0"),
        (("--base-url", "x"), "no such option: --base-url"),
        (("extra",), "got unexpected extra argument"),
    ],
)
def test_wrong_flags_have_one_clear_error(capsys, words, said):
    code, out, err = evenflow(capsys, "bench", "kernels", *words)
    assert code != 0
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert "hint: " in err


def test_groups_are_printed_as_they_come_and_json_is_the_last_line(capsys):
    from evenflow.bench.kernels.run import Group

    rows = [
        Row("a product", "GFLOP/s", 200.0, 150.0, 0.88),
        Row("chunks", "ms", 10.0, 10.1, 1.02, at_most=True),
    ]

    def groups():
        yield Group("products", 91.0, rows)
        assert "a product" in capsys.readouterr().out
        yield Group("more", 380.0, [])

    bench_kernels.show({"isa": "portable", "peak_gflops": 200.0}, groups())
    last = capsys.readouterr().out.strip().splitlines()[-1]
    told = json.loads(last)
    assert told["machine"]["isa"] == "portable"
    assert [(r["group"], r["ratio"], r["reached"]) for r in told["rows"]] == [
        ("products", 0.75, False),
        ("products", 1.01, True),
    ]


def test_the_measured_rows_of_a_tiny_machine():
    """Every kind of row is made once, on a model small enough for a test."""
    from evenflow.bench.kernels.limits import Machine
    from evenflow.bench.kernels.serving import python_rows, tail_ratio
    from evenflow.bench.kernels.steps import (
        Load,
        Setting,
        chunk_rows,
        decode_rows,
    )
    from evenflow.runner.native import NativeRunner
    from helpers.native_models import stored_model

    model = stored_model("F32", num_layers=1, context_length=8192)
    machine = Machine("portable", 1)
    runner = NativeRunner(model, num_blocks=150, weights="bf16", isa="portable", num_threads=1)
    at = Setting(machine, model, Load(runner, 150), "bf16", 1)
    rows = [
        *decode_rows(at),
        *chunk_rows(at, 300),
        *python_rows(at, 1),
    ]
    assert all(row.ratio > 0 for row in rows)
    assert [row.target for row in rows[:3]] == [0.92, 0.65, 0.66]
    assert len({row.what for row in rows}) == len(rows)
    assert len(at.load._free) == 150, "all blocks came back"
    assert tail_ratio([1.0] * 99 + [3.0]) > 1.0
    runner.close()
