"""The report: self-contained, complete, and drawn where it should be."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from evenflow.bench.blame import blame
from evenflow.bench.blame.steps import StepEvidence
from evenflow.bench.records import Records, RecordWriter
from evenflow.bench.report import contents_of, write_picture, write_report
from evenflow.bench.report.page import page, pictures
from evenflow.bench.report.svg import Scale
from evenflow.cli.main import main
from evenflow.errors import RecordError
from helpers.blamed import attack, traced
from helpers.synthetic import Event, Plan, simulate, streams

VOID = {"meta", "rect", "polyline", "br"}


class _Page(HTMLParser):
    """Checks that tags close, and collects addresses and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.text, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in {"src", "href", "action", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def run():
    plan = Plan(budget=4096, jitter_ms=1, pauses=(Event(8.0, 0.3),))
    return simulate(streams(10, 1000) + attack(2), plan)


@pytest.fixture(scope="module")
def contents(run):
    evidence = StepEvidence(traced(run, 10.0))
    found = blame(run.records, evidence=evidence)
    run.records.header["machine"] = {"cpu": "a <made-up> processor", "cores": 2}
    return contents_of(run.records, found, evidence=evidence, command="evenflow report x.jsonl")


def test_it_needs_nothing_from_anywhere(contents):
    text = page(contents)
    parsed = _Page(text)
    assert parsed.addresses == []
    assert "script" not in parsed.tags
    # the name of the SVG language is the only address in it, and nothing fetches that
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text


def test_everything_is_on_it(contents):
    text = " ".join(_Page(page(contents)).text)
    for words in (
        "budget_too_large",
        "Gaps over time",
        "Offenders",
        "attack-0",
        "24,000",
        "Stalled time by cause",
        "a pause of the server",
        "The tail",
        "By class",
        "attacker",
        "What each step held",
        "a <made-up> processor",
        "evenflow report x.jsonl",
        "p99.9",
    ):
        assert words in text, words


def test_names_from_outside_are_escaped():
    run = simulate(streams(4, 300) + attack(1), Plan())
    evil = next(r for r in run.records.requests if r.class_name == "attacker")
    evil.id = "<script>alert(1)</script>"
    evil.class_name = "<b>"
    text = page(contents_of(run.records, blame(run.records), command="<i>"))
    assert "<script>" not in text
    assert "<b>&" not in text
    assert "&lt;script&gt;" in text


def test_pictures_are_drawings_whose_colours_are_filled_in(contents, tmp_path):
    for name in ("timeline", "tail", "steps"):
        write_picture(tmp_path / f"{name}.svg", contents, name)
        root = ET.fromstring((tmp_path / f"{name}.svg").read_text())
        assert root.tag.endswith("svg")
        assert "var(" not in (tmp_path / f"{name}.svg").read_text()
        assert len(list(root)) > 10


def test_a_stall_is_drawn_where_and_as_long_as_it_was(run, contents):
    drawing = pictures(contents)["timeline"].svg()
    root = ET.fromstring(drawing)
    hints = [
        (r, r[0].text)
        for r in root.iter("{http://www.w3.org/2000/svg}rect")
        if len(r) and "streams," in (r[0].text or "")
    ]
    episodes = contents.blame.episodes
    assert len(hints) == len(episodes)
    widths = [float(r.get("width")) for r, _ in hints]
    lengths = [e.end_s - e.start_s for e in episodes]
    longest = lengths.index(max(lengths))
    assert widths[longest] == max(widths)
    assert "pause of the server" in hints[longest][1]


def test_a_png_is_one(contents, tmp_path):
    pytest.importorskip("vl_convert")
    write_picture(tmp_path / "t.png", contents)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_streams_has_a_report_all_the_same(tmp_path):
    records = Records()
    contents = contents_of(records, blame(records))
    write_report(tmp_path / "r.html", contents)
    _Page((tmp_path / "r.html").read_text())
    with pytest.raises(RecordError, match="no timeline"):
        write_picture(tmp_path / "t.svg", contents)


def test_a_folder_that_is_not_there(contents, tmp_path):
    with pytest.raises(RecordError, match="cannot write"):
        write_report(tmp_path / "none" / "r.html", contents)


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0, 100, 0, 1), [0, 20, 40, 60, 80, 100]),
        (Scale(8, 60, 0, 1, log=True), [10, 20, 50]),
        (Scale(0.5, 20_000, 0, 1, log=True), [1, 10, 100, 1000, 10_000]),
    ],
)
def test_ticks_are_round(scale, ticks):
    assert scale.ticks() == pytest.approx(ticks)
    assert 0 <= scale(ticks[0]) < scale(ticks[-1]) <= 1


def test_the_command(run, tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, run.records.header) as writer:
        for request in run.records.requests:
            writer.add(request)
    assert main(["report", str(path), "--picture", str(tmp_path / "p.svg")]) == 0
    assert (tmp_path / "r.html").exists()
    assert (tmp_path / "p.svg").exists()
    assert main(["report", str(path), "--show", "pie"]) == 2
    assert main(["report", str(path), "--picture", str(tmp_path / "q.svg"), "--show", "steps"]) == 2
    assert "steps need --steps or --log" in capsys.readouterr().err
