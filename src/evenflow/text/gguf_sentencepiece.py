"""SentencePiece tokenizers of a GGUF file: BPE by scores ("llama") and unigram ("t5").

In: pieces, their types and scores. Out: the encoder without added tokens. Text is not cut into
words: spaces become U+2581 and the whole text is one word. A character without a piece becomes its
UTF-8 bytes where the file has the 256 byte pieces, else the unknown token. As llama.cpp does, and
transformers with `legacy`, a text that follows a special token gets the leading space too.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import Regex, decoders, models, normalizers

from evenflow.errors import ModelError
from evenflow.text.gguf_bpe import bpe
from evenflow.text.gguf_keys import BYTE, NORMAL, UNUSED
from evenflow.text.parts import GgufKind
from evenflow.text.pieces import sentencepiece_bytes

if TYPE_CHECKING:
    from evenflow.text.gguf_keys import Keys, Vocabulary

SPACE = "\u2581"  # lower one eighth block, SentencePiece's sign for a space


def score_bpe(keys: Keys, vocabulary: Vocabulary) -> GgufKind:
    """BPE that merges the pair whose result has the highest score; merges of the file come first.

    Raises:
        ModelError: no scores, or another number of them.
    """
    num_tokens = len(vocabulary.spellings)
    default_ids = {"bos": 1, "eos": 2, "unknown": 0}
    unknown = keys.token_id("unknown_token_id", num_tokens, default=default_ids["unknown"])
    has_bytes = bool(vocabulary.of_type(BYTE))
    merges = keys.value("merges", list, required=False)
    if merges is None:
        merges = merges_by_score(vocabulary, _scores(keys, num_tokens))
    backend = tokenizers.Tokenizer(
        bpe(
            vocabulary,
            merges,
            ignore_merges=False,
            unknown=None if unknown is None else vocabulary.spellings[unknown],
            byte_fallback=has_bytes,
        )
    )
    prefix = keys.flag("add_space_prefix", default=True)
    # here text keeps all of its spaces unless the file asks for more
    squeeze = keys.flag("remove_extra_whitespaces", default=False)
    return _kind(
        backend,
        _normalizer(keys, prefix=prefix, squeeze=squeeze),
        prefix=prefix,
        byte_fallback=has_bytes,
        add_bos=True,
        add_eos=False,
        default_ids=default_ids,
    )


def unigram(keys: Keys, vocabulary: Vocabulary) -> GgufKind:
    """The most probable pieces by a unigram model, as T5 has it.

    Raises:
        ModelError: no scores, another number of them, or no unknown token.
    """
    num_tokens = len(vocabulary.spellings)
    scores = _scores(keys, num_tokens)
    default_ids = {"eos": 1, "unknown": 2, "padding": 0}
    unknown = keys.token_id("unknown_token_id", num_tokens, default=default_ids["unknown"])
    has_bytes = bool(vocabulary.of_type(BYTE))
    pieces = list(zip(vocabulary.spellings, map(float, scores), strict=True))
    try:
        model = models.Unigram(pieces, unk_id=unknown, byte_fallback=has_bytes)
    except Exception as error:  # bare Exception is what the library raises
        raise ModelError(
            f"the {num_tokens:,} unigram pieces do not make a tokenizer: {error}",
            hint="the file is broken: convert the model again",
        ) from error
    prefix = keys.flag("add_space_prefix", default=True)
    squeeze = keys.flag("remove_extra_whitespaces", default=True)
    return _kind(
        tokenizers.Tokenizer(model),
        _normalizer(keys, prefix=prefix, squeeze=squeeze),
        prefix=prefix,
        byte_fallback=has_bytes,
        add_bos=False,
        add_eos=True,
        default_ids=default_ids,
    )


def merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best score first.

    SentencePiece keeps scores and no merges; this is the list that converters to tokenizer.json
    derive (of equal scores the longer left part first), so both spell the same text the same way.
    Control, unknown and byte pieces are never made from text.
    """
    made = vocabulary.of_type(NORMAL, UNUSED)
    spellings = vocabulary.spellings
    known = {spellings[i] for i in made}
    ranked = [
        (-scores[i], -split, (piece[:split], piece[split:]))
        for i in made
        for piece in (spellings[i],)
        for split in range(1, len(piece))
        if piece[:split] in known and piece[split:] in known
    ]
    ranked.sort()
    return [pair for _, _, pair in ranked]


def _scores(keys: Keys, num_tokens: int) -> list[float]:
    scores = keys.per_token("scores", num_tokens, "scores")
    if scores is None:
        raise ModelError(
            "the model file has no tokenizer.ggml.scores, by which its pieces are ranked",
            hint="the file is incomplete or too old: convert the model again",
        )
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise ModelError(
            "tokenizer.ggml.scores holds what is no finite number",
            hint="the file is broken: convert the model again",
        )
    return scores


def _normalizer(keys: Keys, *, prefix: bool, squeeze: bool) -> normalizers.Normalizer:
    """What is done to a text first, in SentencePiece's order."""
    steps: list[normalizers.Normalizer] = []
    charsmap: list[int] | None = keys.value("precompiled_charsmap", list, required=False)
    if charsmap:
        try:
            steps.append(normalizers.Precompiled(bytes(byte & 0xFF for byte in charsmap)))
        except Exception as error:  # bare Exception is what the library raises
            raise ModelError(
                f"tokenizer.ggml.precompiled_charsmap, {len(charsmap):,} bytes, cannot be read:"
                f" {error}",
                hint="the file is broken: convert the model again",
            ) from error
    if squeeze:  # only spaces count: a newline is text
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _kind(
    backend: tokenizers.Tokenizer,
    normalizer: normalizers.Normalizer,
    *,
    prefix: bool,
    byte_fallback: bool,
    add_bos: bool,
    add_eos: bool,
    default_ids: dict[str, int],
) -> GgufKind:
    backend.normalizer = normalizer
    undo: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    undo += [decoders.ByteFallback()] if byte_fallback else []
    undo += [decoders.Fuse()]
    undo += [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(undo)
    return GgufKind(
        backend=backend,
        bytes_of=partial(sentencepiece_bytes, space=SPACE, byte_fallback=byte_fallback),
        add_bos=add_bos,
        add_eos=add_eos,
        max_leading_spaces=int(prefix),
        default_ids=default_ids,
    )
