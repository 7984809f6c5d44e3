"""An `LLM` without a model: what it writes is a function of the request, letter by letter."""

from __future__ import annotations

from types import SimpleNamespace

from evenflow.llm import LLM
from helpers.engines import LetterTokenizer, make_engine


class Letters(LetterTokenizer):
    """Encodes too: one token per character, one for each word of a chat's markup."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) % self.vocab_size for character in text]

    encode_chat = encode


def make_llm(runner=None, **options) -> LLM:
    """A front door over `make_engine`; options as for an `LLM`."""
    llm = LLM.__new__(LLM)
    llm._progress = False
    llm.engine = make_engine(runner, **options)
    llm.config = llm.engine.config
    llm.tokenizer = Letters()
    llm.model = SimpleNamespace(spec=SimpleNamespace(context_length=256))
    llm._chat_template = SimpleNamespace(
        render=lambda messages: "".join(f"<{m['role']}>{m['content']}" for m in messages)
    )
    return llm
