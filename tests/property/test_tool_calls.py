"""Calls of tools in a text: the same ones however the text is cut, and nothing is lost."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.text.json_scan import JsonScanner, Mark
from evenflow.text.tool_calls import STYLES, Piece, ToolCallParser, style_of

NAMES = ("f", "get_weather")
STYLE = st.sampled_from([*STYLES, "list"])

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)

# what such texts are made of, so that random ones come near to being calls
SCRAPS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "arguments": {"a": [1, {"b": null}]}}',
        '{"name": "get_weather", "parameters": {"x": "\\"}{"}}',
        '{"name": "unknown", "arguments": {}}',
        '{"arguments": {"late": 1}, "name": "f"}',
        '{"name": "f", "arguments": {"a": 1 2}}',
        '{"name": "f", "arguments": {"a": ',
        *'{}[]:,;"\\ \n<fn1-.e',
        "Hello.",
        "é",
    ]
)
TEXTS = st.lists(SCRAPS, max_size=12).map("".join)


def merged(pieces) -> list[Piece]:
    """Neighbours of one kind joined, as one piece of text gives them."""
    out: list[Piece] = []
    for kind, text in pieces:
        if out and out[-1].kind == kind != "call":
            out[-1] = Piece(kind, out[-1].text + text)
        else:
            out.append(Piece(kind, text))
    return out


def parse(style, parts, *, eager) -> list[Piece]:
    parser = ToolCallParser(style, NAMES, eager=eager)
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return merged(pieces + parser.finish())


def calls(pieces) -> list[tuple[str, str]]:
    """Names and arguments."""
    found = []
    for kind, text in pieces:
        if kind == "call":
            found.append((text, ""))
        elif kind == "arguments":
            found[-1] = (found[-1][0], found[-1][1] + text)
    return found


def written(style, given, *, indent=None) -> str:
    """Calls as a model of that style writes them."""
    key = "parameters" if style == "llama3_json" else "arguments"
    objects = [json.dumps({"name": n, key: a}, indent=indent, ensure_ascii=False) for n, a in given]
    match style:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "llama3_json":
            return "; ".join(objects)
        case "mistral":
            return "[TOOL_CALLS] [" + ", ".join(objects) + "]"
    return "[" + ",".join(objects) + "]"


def cut(text, places) -> list[str]:
    points = sorted({min(p, len(text)) for p in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(points)]


@given(STYLE, TEXTS, st.lists(st.integers(0, 200)), st.booleans())
def test_any_cut_gives_the_same(style, text, places, eager):
    whole = parse(style, [text], eager=eager)
    assert parse(style, cut(text, places), eager=eager) == whole
    assert parse(style, list(text), eager=eager) == whole


@given(STYLE, CALLS, st.sampled_from([None, 2]), st.booleans())
def test_what_was_written_is_found(style, given_calls, indent, eager):
    pieces = parse(style, list(written(style, given_calls, indent=indent)), eager=eager)
    assert [(name, json.loads(text)) for name, text in calls(pieces)] == given_calls
    assert not [piece for piece in pieces if piece.kind == "content"]


@given(STYLE, TEXTS)
def test_a_patient_call_is_always_complete(style, text):
    found = parse(style, [text], eager=False)
    for name, arguments in calls(found):
        assert name in NAMES
        assert isinstance(json.loads(arguments), dict)
    if not calls(found):
        assert "".join(piece.text for piece in found) == text


@given(STYLE, TEXTS)
@example("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1 2}}</tool_call>')
def test_an_eager_one_differs_only_where_a_call_breaks_off(style, text):
    eager, patient = parse(style, [text], eager=True), parse(style, [text], eager=False)
    broken = [a for _, a in calls(eager) if not is_object(a)]
    assert broken or eager == patient


def is_object(text) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_the_scanner_ends_where_the_value_ends(value, indent, ascii_only):
    text = json.dumps([value], indent=indent, ensure_ascii=ascii_only)
    scanner = JsonScanner()
    for place, char in enumerate(text):
        assert not scanner.is_done
        assert scanner.feed(char) is not Mark.BROKEN, (text, place)
    assert scanner.is_done


JSON_SCRAPS = st.sampled_from(
    [*'{}[]:, \n"\\au', "0", "1", "-", ".", "e", "true", "null", '"a"', "\\u00e9", "\t", "\x01"]
)


@given(st.lists(JSON_SCRAPS, max_size=12).map("".join))
def test_the_scanner_takes_what_a_library_takes(inner):
    text = f"[{inner}]"
    scanner = JsonScanner()
    taken = 0
    for char in text:
        if scanner.is_done or scanner.feed(char) is Mark.BROKEN:
            break
        taken += 1
    try:
        json.loads(text)
    except ValueError:
        valid = False
    else:
        valid = True
    assert (scanner.is_done and taken == len(text)) == valid


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (
            "hermes",
            'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"q": 1}}\n</tool_call>\n',
            [("content", "Let me see."), ("call", "f"), ("arguments", '{"q": 1}')],
        ),
        ("hermes", "a <tool_call> b", [("content", "a <tool_call> b")]),
        ("hermes", "a <tool_ca", [("content", "a <tool_ca")]),
        ("hermes", '<tool_call>{"name": "f"}', [("call", "f"), ("arguments", "{}")]),
        (
            "hermes",
            '{"name": "f", "arguments": {}}',
            [("content", '{"name": "f", "arguments": {}}')],
        ),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
            [("content", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>')],
        ),
        (
            "hermes",
            '<tool_call>{"na\\"name": "f", "n": 1 , "name": "f", "arguments": {}}</tool_call>',
            [("call", "f"), ("arguments", "{}")],
        ),
        (
            "llama3_json",
            '<|python_tag|>{"name": "f", "parameters": {"q": "a;b"}}; {"name": "f", "parameters": {}}',
            [("call", "f"), ("arguments", '{"q": "a;b"}'), ("call", "f"), ("arguments", "{}")],
        ),
        ("llama3_json", '{"name": "Bob", "age": 3}', [("content", '{"name": "Bob", "age": 3}')]),
        (
            "llama3_json",
            'Sure: {"name": "f", "parameters": {}}',
            [("content", 'Sure: {"name": "f", "parameters": {}}')],
        ),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "f", "arguments": {"q": 1}, "id": "abcdefghi"}]',
            [("call", "f"), ("arguments", '{"q": 1}')],
        ),
        (
            "mistral",
            '[TOOL_CALLS]get_weather[ARGS]{"q": 1}[TOOL_CALLS]f{}',
            [
                ("call", "get_weather"),
                ("arguments", '{"q": 1}'),
                ("call", "f"),
                ("arguments", "{}"),
            ],
        ),
        ("mistral", "[TOOL_CALLS] none of these", [("content", "[TOOL_CALLS] none of these")]),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            [
                ("call", "f"),
                ("arguments", "{}"),
                ("content", ', {"name": "g", "arguments": {}}]'),
            ],
        ),
    ],
)
def test_examples(style, text, expected):
    assert parse(style, [text], eager=False) == expected
    assert parse(style, [], eager=True) == []


def test_arguments_come_as_they_are_written():
    parser = ToolCallParser("hermes", NAMES, eager=True)
    seen = [
        parser.feed(part)
        for part in ('<tool_call>{"name": "f", ', '"arguments": {"a"', ": 1}", "}")
    ]
    assert seen == [[], [("call", "f"), ("arguments", '{"a"')], [("arguments", ": 1}")], []]


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("within <tool_call></tool_call> XML tags:\n<tool_call>", "hermes"),
        ("{{- '[TOOL_CALLS] [' }}", "mistral"),
        ("""{{- "<|python_tag|>" + tool_call.name + ".call(" }}""", "llama3_json"),
        (
            'Respond in the format {"name": function name, "parameters": dictionary of',
            "llama3_json",
        ),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", None),
        ("<tool_call>\n<function=example_function_name>", None),
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", None),
    ],
)
def test_the_style_is_seen_in_the_template(template, style):
    assert style_of(template) == style
