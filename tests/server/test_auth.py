"""Who may come in."""

from __future__ import annotations

import re

import pytest

from evenflow.errors import ConfigError
from evenflow.server.settings import Settings
from helpers.servers import get, post, read_all, serving

KEYS = ("first-key", "second-key")
CLOSE = {"connection": "close"}
CLOSED = ["/v1/models", "/version", "/metrics", "/v1/steps", "/openapi.json", "/nowhere"]


@pytest.fixture(scope="module")
def locked():
    with serving(api_keys=KEYS) as found:
        yield found


def status(answer: bytes) -> int:
    return int(answer[9:12])


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize(
    "given",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer first-ke",
        "Bearer first-key2",
        "Basic first-key",
        "first-key",
        "Bearer é",
    ],
)
def test_a_missing_or_wrong_key_opens_nothing(locked, path, given):
    answer = get(locked.port, path, {} if given is None else {"authorization": given})
    assert status(answer) == 401
    assert b"www-authenticate: Bearer" in answer
    assert b'"invalid_api_key"' in answer


@pytest.mark.parametrize("given", ["Bearer first-key", "bearer second-key"])
def test_each_key_opens_everything(locked, given):
    fields = {"authorization": given}
    assert status(get(locked.port, "/metrics", fields)) == 200
    body = {"prompt": "a", "max_tokens": 1}
    answer = read_all(post(locked.port, "/v1/completions", body, headers=CLOSE | fields))
    assert status(answer) == 200
    assert status(read_all(post(locked.port, "/v1/completions", body, headers=CLOSE))) == 401


def test_what_needs_no_key(locked):
    assert status(get(locked.port, "/health")) == 200
    assert status(get(locked.port, "/")) == 200
    with serving(api_keys=KEYS, public_metrics=True) as found:
        assert status(get(found.port, "/metrics")) == 200
        assert status(get(found.port, "/v1/models")) == 401


def test_no_answer_allows_another_origin(locked):
    answer = get(locked.port, "/health", {"origin": "http://evil.example"})
    assert b"access-control" not in answer.lower()


def test_the_page_asks_no_other_host(locked):
    answer = get(locked.port, "/")
    assert b"content-security-policy: default-src 'none'" in answer
    assert not re.search(rb"(?:src|href)=[\"']?(?:https?:)?//", answer)
    assert not re.search(rb"https?://(?!www\.w3\.org)", answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"port": 70_000}, "port is 70,000"),
        ({"max_body_bytes": 10}, "max_body_bytes"),
        ({"request_timeout_s": -1}, "request_timeout"),
        ({"request_timeout_s": float("nan")}, "request_timeout"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"metrics_prefix": "a b"}, "metrics_prefix"),
        ({"api_keys": ("",)}, "API key"),
        ({"api_keys": (" x",)}, "API key"),
        ({"public_metrics": True}, "public_metrics"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, word):
    with pytest.raises(ConfigError, match=word) as caught:
        Settings(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x.org", False)],
)
def test_what_counts_as_this_machine(host, is_loopback):
    assert Settings(host=host).is_loopback == is_loopback
