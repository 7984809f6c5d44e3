"""Pictures made of characters."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from evenflow.bench.conduct import ConductOptions, Conductor
from evenflow.bench.live import LiveView, sparkline
from evenflow.bench.measure import measure
from evenflow.bench.plot import Band, scatter
from evenflow.bench.show import show_run
from evenflow.bench.validity import judge
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.prompts import Calibration
from helpers.bench import FakeDriver
from helpers.recorded import make_record, make_records, steady


def test_a_plot_has_its_axes_and_a_lane():
    lines = scatter([(0.0, 10.0), (1.0, 500.0)], width=60, height=6, bands=[Band(0.5, 0.6)])
    assert len(lines) == 6 + 3
    assert all(len(line) <= 60 for line in lines)
    assert "ms" in lines[0]
    assert "▀" in lines[6]
    assert scatter([], width=60, height=6) == []


@pytest.mark.parametrize("ms", [0.0001, 0.1, 0.12, 0.999, 9.996, 99.97, 999.7, 1234.0, 2e6, 3e7])
def test_labels_keep_to_their_columns_and_have_no_exponents(ms):
    lines = scatter([(0.0, ms), (ms * 3, ms)], width=60, height=6)
    assert all(len(line) <= 60 for line in lines)
    assert len({line.index("│") for line in lines[:6]}) == 1
    assert "e+" not in "".join(lines)


def test_a_sparkline_is_as_high_as_its_values():
    assert sparkline([1.0, 8.0]) == "▂█"
    assert sparkline([]) == ""


def test_the_live_view_shows_how_far_the_run_is_and_a_stream_that_stands_still_now():
    workload = make_workload(WorkloadOptions(num_prompts=4, max_concurrency=2))
    conductor = Conductor(
        workload,
        FakeDriver(),
        options=ConductOptions(),
        calibration=Calibration(),
        clock=lambda: 3.0,
    )
    conductor.state.records.add(make_record(steady(50)))
    conductor.state.records.add(make_record([], id="bad", error="HTTP 500"))
    conductor.state.running["r9"] = make_record(steady(101, first_s=0.5), id="r9", end_s=None)
    out = io.StringIO()
    Console(file=out, width=100).print(LiveView(conductor).render())
    shown = out.getvalue()
    assert "2 done, 1 failed" in shown
    assert "1 running" in shown
    assert "3 s, 3 s left" in shown
    assert "worst 1500.0 ms" in shown  # since 1.5 s nothing has come


@pytest.mark.parametrize("width", [80, 120])
def test_the_figures_of_a_run_stand_on_one_line_each(width):
    records = make_records(*(make_record(steady(60), id=f"r{i}") for i in range(4)))
    out = io.StringIO()
    found = show_run(records, measure(records), judge(records), width=width)
    Console(file=out, width=width).print(found)
    lines = out.getvalue().splitlines()
    assert sum(line.startswith("  ITL per token ") for line in lines) == 1
    assert any("gaps shared out over their tokens" in line for line in lines) == (width == 120)
    assert all(len(line) <= width for line in lines)
