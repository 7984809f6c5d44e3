"""The front door with the real model: text in, text out, several callers at once."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import time

import pytest

from evenflow import LLM, ConfigWarning, SamplingParams, StructuredOutputs
from evenflow.errors import ConfigError, InvalidRequestError, ModelError
from evenflow.model.load import resolve_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def installed() -> bool:
    try:
        resolve_model("smollm2")
    except ModelError:
        return False
    return True


pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not installed(), reason="smollm2 is not installed: evenflow pull smollm2"),
]


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2", max_model_len=512, max_num_batched_tokens=64, progress=False) as made:
        yield made


def test_generate_takes_text_and_ids_and_keeps_the_order(llm):
    ids = llm.tokenizer.encode("The capital of France is")
    one, two, three = llm.generate(["2 + 2 =", ids, "The capital of France is"], GREEDY)
    assert one.prompt == "2 + 2 ="
    assert two.prompt is None
    assert two.prompt_token_ids == ids
    assert two.text == three.text
    assert two.text.startswith(" Paris")
    assert len(two.token_ids) == 4
    assert two.finish_reason == "length"


def test_one_prompt_of_ids_is_one_prompt(llm):
    assert len(llm.generate(llm.tokenizer.encode("One two"), GREEDY)) == 1


def test_generate_nothing(llm):
    assert llm.generate([], GREEDY) == []


def test_params_for_each_prompt(llm):
    short, long = llm.generate(
        ["One", "One"],
        [SamplingParams(temperature=0, max_tokens=n) for n in (2, 5)],
    )
    assert (len(short.token_ids), len(long.token_ids)) == (2, 5)
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1"):
        llm.generate(["a", "b"], [GREEDY])


def test_chat_answers_and_stops(llm):
    params = SamplingParams(temperature=0, max_tokens=40)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (answer,) = llm.chat(question, params)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text
    assert [c.text for c in llm.chat([question, question], params)] == [answer.text] * 2
    assert "".join(e.text for e in llm.stream_chat(question, params)) == answer.text


def test_streams_sync_and_async_say_the_same(llm):
    events = list(llm.stream("Once upon a time", GREEDY))
    assert [e.finish_reason for e in events] == [None] * 3 + ["length"]

    async def collect():
        async with llm.stream("Once upon a time", GREEDY) as stream:
            return [event async for event in stream]

    again = asyncio.run(collect())
    assert [e.token_id for e in again] == [e.token_id for e in events]
    assert "".join(e.text for e in again) == llm.generate("Once upon a time", GREEDY)[0].text


def test_several_async_streams_in_one_loop(llm):
    async def collect(prompt):
        return "".join([e.text async for e in llm.stream(prompt, GREEDY)])

    async def main():
        return await asyncio.gather(*[collect(p) for p in ("One", "Two", "Three")])

    texts = asyncio.run(main())
    assert texts == [c.text for c in llm.generate(["One", "Two", "Three"], GREEDY)]


def test_callers_on_threads_share_the_engine(llm):
    texts = {}

    def call(prompt):
        texts[prompt] = llm.generate(prompt, GREEDY)[0].text

    prompts = ["The sea is", "def main():", "In 1969"]
    threads = [threading.Thread(target=call, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[p] for p in prompts] == [c.text for c in llm.generate(prompts, GREEDY)]


def wait_until_idle(llm) -> None:
    deadline = time.monotonic() + 60
    while llm.engine._scheduler.has_unfinished:
        assert time.monotonic() < deadline, "a request was never cancelled"
        time.sleep(0.01)
    assert llm.engine._scheduler.kv.usage().held == 0


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_leaving_a_stream_early_cancels_it(llm, leave):
    stream = llm.stream("Count:", SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    if leave == "with":
        with stream:
            next(stream)
    else:
        next(stream)
        if leave == "close":
            stream.close()
            assert list(stream) == []
    del stream
    gc.collect()
    wait_until_idle(llm)


def test_seeds_decide_the_draw(llm):
    def draw(seed, others=0):
        params = [SamplingParams(temperature=1.0, max_tokens=8, seed=seed)]
        params += [SamplingParams(temperature=1.0, max_tokens=4)] * others
        return llm.generate(["The sea is"] * (1 + others), params)[0].token_ids

    assert draw(1) == draw(1, others=3)
    assert draw(1) != draw(2)


def test_a_bad_prompt_in_a_batch_runs_nothing(llm):
    before = llm.engine._num_requests
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate(["good", []], GREEDY)
    with pytest.raises(InvalidRequestError, match="context holds 512"):
        llm.generate(["good", "long " * 600], GREEDY)
    assert llm.engine._num_requests == before
    assert llm.generate("good", GREEDY)[0].finish_reason == "length"


def test_options_are_checked():
    with pytest.raises(ConfigError, match="max_num_bached_tokens") as caught:
        LLM("smollm2", max_num_bached_tokens=64)
    assert "max_num_batched_tokens" in caught.value.hint
    with pytest.raises(ModelError, match="does not exist"):
        LLM("/no/such/model.gguf")
    with pytest.raises(ConfigError, match="512"):
        LLM("smollm2", max_model_len=512, num_kv_blocks=4)


def test_chunking_does_not_change_the_text(llm):
    prompt = "The quick brown fox jumps over the lazy dog. " * 30
    chunked = llm.generate([prompt, "A"], GREEDY)[0]
    with LLM("smollm2", max_model_len=512, enable_chunked_prefill=False, progress=False) as whole:
        assert whole.config.policy == "prefill-first"
        assert whole.generate(prompt, GREEDY)[0].token_ids == chunked.token_ids


def test_what_a_person_should_know_is_a_warning_at_the_callers_line():
    with pytest.warns(ConfigWarning, match="trained for 8,192") as caught:
        llm = LLM("smollm2", progress=False, max_model_len=8200, num_kv_blocks=520)
    llm.close()
    assert caught[0].filename == __file__


def test_several_answers_with_log_probabilities(llm):
    params = SamplingParams(n=3, max_tokens=4, seed=1, logprobs=2, prompt_logprobs=1)
    (done,) = llm.generate("The capital of France is", params)
    assert [output.index for output in done.outputs] == [0, 1, 2]
    assert done.text == done.outputs[0].text
    assert len({output.text for output in done.outputs}) > 1
    for output in done.outputs:
        assert [len(entry.top) for entry in output.logprobs] == [2] * 4
    assert done.prompt_logprobs[0] is None
    assert len(done.prompt_logprobs) == len(done.prompt_token_ids)
    (alone,) = llm.generate("The capital of France is", SamplingParams(max_tokens=4, seed=1))
    assert alone.token_ids == done.token_ids
    assert alone.logprobs is alone.prompt_logprobs is None


def test_an_answer_has_the_form_that_was_asked_for(llm):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
        "required": ["name", "big"],
        "additionalProperties": False,
    }
    forms = [StructuredOutputs(json=schema), StructuredOutputs(regex="[0-9]{3}!")]
    asks = [
        SamplingParams(max_tokens=60, seed=seed, structured_outputs=form)
        for form in forms
        for seed in range(3)
    ]
    done = llm.generate(["A city:"] * 6, asks)
    assert {completion.finish_reason for completion in done} == {"stop"}
    for completion in done[:3]:
        assert set(json.loads(completion.text)) == {"name", "big"}
    for completion in done[3:]:
        assert re.fullmatch("[0-9]{3}!", completion.text)
    impossible = SamplingParams(structured_outputs=StructuredOutputs(regex=r"[^\s\S]"))
    with pytest.raises(InvalidRequestError, match="no text has this form"):
        llm.generate("x", impossible)


def test_bad_words_do_not_appear(llm):
    (plain,) = llm.generate("The capital of France is", GREEDY)
    (other,) = llm.generate(
        "The capital of France is",
        SamplingParams(temperature=0.0, max_tokens=4, bad_words=["Paris"]),
    )
    assert "Paris" in plain.text
    assert "Paris" not in other.text
