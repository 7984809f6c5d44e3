"""Tokens per message: what the server said, or an honest word on how else it is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenflow.bench.counting import settle_tokens, spread
from evenflow.bench.records import Message


@given(st.integers(0, 500), st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_shares_add_up_and_no_message_is_left_empty_while_there_are_enough(total, weights):
    parts = spread(total, weights)
    assert sum(parts) == total
    assert min(parts) >= (1 if total >= len(parts) else 0)


@given(st.integers(1, 30), st.integers(1, 30))
def test_equal_messages_get_equal_shares(count, each):
    assert spread(count * each, [7] * count) == [each] * count


def test_a_tenth_is_a_tenth():
    assert spread(10, [0.9, 0.1]) == [9, 1]
    assert spread(100, [0.98, 0.01, 0.01]) == [98, 1, 1]


def messages(*chars):
    return [Message(float(i), 0, c) for i, c in enumerate(chars)]


def test_the_servers_count_of_each_message_wins():
    given_ = [Message(0.0, 3, 12), Message(1.0, 2, 8)]
    counted = settle_tokens(given_, 99, each_known=True)
    assert counted.messages == given_
    assert (counted.tokens_from, counted.output_tokens) == ("usage", 5)


def test_one_per_message_when_the_total_agrees_or_is_unknown():
    assert settle_tokens(messages(4, 4), 2, each_known=False).tokens_from == "message"
    unknown = settle_tokens(messages(4, 4), None, each_known=False)
    assert (unknown.tokens_from, unknown.output_tokens) == ("assumed", 2)


def test_a_larger_total_is_spread_by_characters():
    counted = settle_tokens(messages(40, 4, 4), 12, each_known=False)
    assert counted.tokens_from == "spread"
    assert [m.tokens for m in counted.messages] == [10, 1, 1]
