"""A tokenizer that reads the names of special tokens as ordinary text.

What a user writes must not become a control token. The library's own switch stops the search for
special tokens before the model, yet the model may still spell one: a unigram model has their names
among its pieces, and BPE merges may lead to one. So in this copy the special tokens have names
that no text contains. In: an encoder. Out: another with the same ids.
"""

from __future__ import annotations

import secrets
from typing import Any

import orjson
import tokenizers


def plain_copy(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The copy; tokens that are added but not special are still found."""
    content = orjson.loads(backend.to_str())
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    # drawn anew each time, so that nobody can write it into a prompt
    hidden = {name: f"\uffff{secrets.token_hex(16)}{name}" for name in special}
    for token in content["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    _rename(content["model"], hidden)
    plain = tokenizers.Tokenizer.from_str(orjson.dumps(content).decode())
    plain.encode_special_tokens = True
    return plain


def _rename(model: dict[str, Any], hidden: dict[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # unigram: [piece, score]
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
        return
    model["vocab"] = {hidden.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    merges = model.get("merges")
    if merges:
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
        model["merges"] = [pair for pair in pairs if not hidden.keys() & {*pair, "".join(pair)}]
