"""The demo on a model of letters: the whole command, and what it draws."""

from __future__ import annotations

import json

import pytest

from evenflow.bench.equality import Equality
from evenflow.cli import demo, demo_view
from evenflow.cli.main import main
from evenflow.trace import read_trace
from helpers.letters import make_llm
from helpers.stalls import make_shape, make_summary

SMALL = ["demo", "--streams", "2", "--long-tokens", "100", "--max-num-batched-tokens", "16"]


@pytest.fixture
def _letters(monkeypatch):
    def build(_, runner, **options):
        assert runner == "auto"
        return make_llm(**options)

    monkeypatch.setattr("evenflow.LLM", build, raising=False)
    monkeypatch.setattr("os.getloadavg", lambda: (0.1, 0.1, 0.1))


@pytest.mark.usefixtures("_letters")
def test_the_demo_prints_the_figures_a_plot_a_sentence_and_the_check(capfd, tmp_path):
    assert main([*SMALL, "--trace", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert err == "running with chunking off\nrunning with chunking on\n"
    for words in (
        "during the prefill worst",
        "TTFT of the long prompt",
        "1 of 100",
        "seconds since the long prompt landed",
        "the longest pause of a stream",
        "Both runs gave the same tokens",
        f"step records: {tmp_path}",
    ):
        assert words in " ".join(out.split()), words
    assert "\x1b" not in out
    assert "caution" not in out


@pytest.mark.usefixtures("_letters")
def test_the_step_records_of_both_runs_are_kept(capfd, tmp_path):
    main([*SMALL, "--trace", str(tmp_path / "deep" / "er"), "--json"])
    data = json.loads(capfd.readouterr().out)
    for name, chunked in (("chunking-off", False), ("chunking-on", True)):
        trace = read_trace(tmp_path / "deep" / "er" / f"{name}.jsonl")
        assert trace.header["config"]["enable_chunked_prefill"] is chunked
        lengths = [c.length for step in trace.steps for c in step.chunks if c.request_id == "long"]
        assert lengths == data[name.replace("-", "_")]["chunk_lengths"]
        assert [r.id for r in trace.requests] == ["stream-0", "stream-1", "long"]
    assert data["equality"]["holds"] is True
    assert data["records"] == str(tmp_path / "deep" / "er")


@pytest.mark.usefixtures("_letters")
def test_a_busy_machine_is_named(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr("os.getloadavg", lambda: (99.5, 1.0, 1.0))
    assert main([*SMALL, "--trace", str(tmp_path)]) == 0
    assert capfd.readouterr().err.startswith("warning: the machine is busy (load 99.5 on ")


@pytest.mark.usefixtures("_letters")
def test_different_tokens_are_a_failure(capfd, monkeypatch, tmp_path):
    class Broken(Equality):
        holds = False

    monkeypatch.setattr(demo, "_compare", lambda *_: Broken(1, 1, []))
    assert main([*SMALL, "--trace", str(tmp_path)]) == 1


@pytest.mark.usefixtures("_letters")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--streams", "8", "--max-num-batched-tokens", "9"], 2, "a step of 9 tokens has no room"),
        (["--long-tokens", "300"], 2, "the long prompt and its answer have 304 tokens"),
        (["--long-tokens", "100", "--trace", "/dev/null/x"], 1, "cannot make the folder /dev/null"),
        (["--streams", "0"], 2, "invalid value for '--streams'"),
    ],
)
def test_what_cannot_be_shown_is_refused(capfd, arguments, code, message):
    assert main(["demo", *arguments]) == code
    err = capfd.readouterr().err
    assert f"error: {message}" in err
    assert "hint: " in err


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_plot_is_as_wide_as_asked_and_shows_both_runs(width):
    off = make_summary(chunked=False, worst_ms=6000, ttft_s=6.0)
    on = make_summary(chunked=True, worst_ms=500, ttft_s=6.6)
    lines = demo_view.plot(off, on, width=width, colour=False).splitlines()
    assert max(map(len, lines)) == width
    assert len(lines) == demo_view.PLOT_HEIGHT
    marks = {mark: {i for i, line in enumerate(lines[2:-3]) if mark in line} for mark in "xo"}
    assert min(marks["x"]) < min(marks["o"])
    assert any(line.startswith("   1 s┤") for line in lines)
    bar = max(line.count("x") for line in lines[2:-3])
    assert bar > 0.8 * (width - 10)  # the stall fills nearly all of the time that is shown


def test_colour_only_where_it_is_wanted():
    one = make_summary(chunked=True, worst_ms=10, ttft_s=1.0)
    assert "\x1b[38;5;2mo" in demo_view.plot(one, one, width=80, colour=True)
    assert "\x1b" not in demo_view.plot(one, one, width=80, colour=False)


@pytest.mark.parametrize(
    ("first", "last", "steps"),
    [(-2.1, 6.7, [-2, -1, 0, 1, 2, 3, 4, 5, 6]), (0.0, 0.05, None), (-30.0, 200.0, None)],
)
def test_ticks_are_round_numbers_with_zero_among_them(first, last, steps):
    found = demo_view._round_steps(first, last)
    assert 0 in found
    assert 2 <= len(found) <= 12
    assert first <= found[0]
    assert found[-1] <= last
    assert steps is None or found == steps


def test_the_table_has_a_dash_where_there_is_nothing():
    none = make_summary(chunked=False, worst_ms=None, ttft_s=1.0, output_tokens_per_s=None)
    some = make_summary(chunked=True, worst_ms=20, ttft_s=2.0)
    columns = [list(column.cells) for column in demo_view.table(none, some).columns]
    rows = dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True))
    assert rows["all p50"] == ("-", "20 ms", "-")
    assert rows["TTFT of the long prompt"] == ("1.00 s", "2.00 s", "0.50")
    assert rows["chunks of the long prompt"] == ("1 of 40", "7 of up to 6", "")


def test_without_a_terminal_progress_is_a_word(capfd):
    with demo_view.live("chunking on", make_shape()) as watch:
        watch(None)
    assert capfd.readouterr().err == "running with chunking on\n"
