"""A tokenizer for a model of random weights, as large as its vocabulary.

In: the size, and the metadata of a GGUF file whose tokenizer may be borrowed. Out: GGUF key/values.
A borrowed byte-level BPE gives prompts their usual length in tokens; without one, or for a
vocabulary smaller than it, text is its bytes and a few merges. Ids beyond are words that no text is
encoded to and that print as their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.text.gguf_keys import CONTROL, NORMAL, PREFIX, UNUSED
from evenflow.text.pieces import BYTE_OF

if TYPE_CHECKING:
    from collections.abc import Mapping

_MERGES = ("Ġ Ġ", "ĠĠ ĠĠ", "Ġ t", "h e", "Ġt he", "i n", "r e", "o n", "Ġ a", "Ġa n", "Ġan d")
_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_keys(vocab_size: int, borrowed: Mapping[str, Any] | None) -> dict[str, Any]:
    """Key/values of a tokenizer with exactly `vocab_size` tokens, at least 270.

    Args:
        vocab_size: the number of tokens.
        borrowed: metadata of another file; not taken where its vocabulary is too large.
    """
    if borrowed is None or len(borrowed[PREFIX + "tokens"]) > vocab_size:
        borrowed = _bytes_only()
    keys = {key: value for key, value in borrowed.items() if key.startswith("tokenizer.")}
    tokens, types = list(keys[PREFIX + "tokens"]), list(keys[PREFIX + "token_type"])
    for token_id in range(len(tokens), vocab_size):
        tokens.append(f"Ġ[{token_id}]")
        types.append(UNUSED)
    return {**keys, PREFIX + "tokens": tokens, PREFIX + "token_type": types}


def _bytes_only() -> dict[str, Any]:
    alphabet = sorted(BYTE_OF, key=BYTE_OF.__getitem__)
    tokens = [*_NAMES, *alphabet, *(merge.replace(" ", "") for merge in _MERGES)]
    return {
        PREFIX + "model": "gpt2",
        PREFIX + "pre": "gpt-2",
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        PREFIX + "merges": list(_MERGES),
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        "tokenizer.chat_template": _CHATML,
    }
