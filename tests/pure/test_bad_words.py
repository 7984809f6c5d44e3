"""Bad words: their spellings as token ids, and what that bans position by position."""

from __future__ import annotations

import itertools

from evenflow.config import EngineConfig
from evenflow.engine import Engine
from evenflow.llm import scheduler_options
from evenflow.runner.batch import build_batch
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler
from helpers.driving import plan_of
from helpers.engines import Collector, SpellingRunner
from helpers.texts import tiny_tokenizer


def ids_of(*words: str) -> tuple[tuple[int, ...], ...]:
    """What a request for these bad words carries."""
    config = EngineConfig.resolve(
        {"runner": "reference", "num_kv_blocks": 64, "block_size": 4, "max_model_len": 128},
        context_length=256,
        kv_bytes_per_token=4,
        free_memory_bytes=2**30,
    )
    runner = SpellingRunner(lambda request, position: 5)
    engine = Engine(config, Scheduler(scheduler_options(config)), runner, tiny_tokenizer())
    sink = Collector()
    engine.submit([1], SamplingParams(max_tokens=1, bad_words=words), sink)
    sink.wait()
    engine.close()
    return runner.plans[0].spans[0].request.bad_words


def test_a_word_is_banned_at_the_start_of_a_text_and_after_a_space():
    encode = tiny_tokenizer().encode
    assert ids_of("the") == (tuple(encode("the")), tuple(encode(" the")))
    assert [len(word) for word in ids_of("the")] == [1, 1]
    assert ids_of(" the", "the") == ids_of("the")  # said twice, one way or the other
    assert ids_of("in x") == (tuple(encode("in x")), tuple(encode(" in x")))
    assert ids_of() == ()


def bans(prompt, generated, bad_words) -> list[int]:
    """What may not follow what was generated."""
    request = Request(
        "r", prompt, SamplingParams(), max_tokens=9, stop_ids=frozenset(), bad_words=bad_words
    )
    request.token_ids += generated
    request.block_ids = [0]
    sampling = build_batch(plan_of((request, request.num_tokens - 1, 1, 1)), 64).sampling
    return sampling.banned_ids.tolist()


def test_the_last_token_of_a_word_is_banned_where_the_others_were_just_generated():
    words = ((7,), (1, 2), (1, 1, 3))
    assert bans([9], [], words) == [7]
    assert bans([9], [1], words) == [7, 2]
    assert bans([9], [1, 1], words) == [7, 2, 3]
    assert bans([9], [1, 1, 4], words) == [7]
    assert bans([1, 1], [], words) == [7]  # the prompt may begin a word, as in vLLM
    assert bans([1], [1], words) == [7, 2]


def test_every_row_of_a_span_is_banned_by_what_stands_before_it():
    request = Request(
        "r", [9], SamplingParams(), max_tokens=9, stop_ids=frozenset(), bad_words=((1, 2),)
    )
    request.token_ids += [1, 3, 1]
    request.block_ids = [0]
    sampling = build_batch(plan_of((request, 1, 3, 3)), 64).sampling
    offsets = sampling.banned_offsets.tolist()
    banned = [sampling.banned_ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert banned == [[2], [], [2]]
