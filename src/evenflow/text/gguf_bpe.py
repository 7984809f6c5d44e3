"""The byte-level BPE of a GGUF file (`tokenizer.ggml.model` is "gpt2").

In: its keys. Out: the encoder without added tokens. What cuts text into words is known by name
only; see `pretokenizers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models

from evenflow.errors import ModelError
from evenflow.text import pretokenizers
from evenflow.text.parts import GgufKind
from evenflow.text.pieces import byte_level_bytes

if TYPE_CHECKING:
    from evenflow.text.gguf_keys import Keys, Vocabulary


def byte_level(keys: Keys, vocabulary: Vocabulary) -> GgufKind:
    """Build it.

    Raises:
        ModelError: no merges, merges that do not fit, or an unknown pre-tokenizer.
    """
    rule = pretokenizers.find(keys.value("pre", str))
    merges: list[str] = keys.value("merges", list)
    backend = tokenizers.Tokenizer(
        bpe(vocabulary, merges, ignore_merges=rule.ignore_merges, unknown=None)
    )
    backend.pre_tokenizer = rule.make()
    backend.decoder = decoders.ByteLevel()
    normalizer = rule.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    return GgufKind(
        backend=backend,
        bytes_of=byte_level_bytes,
        add_bos=rule.add_bos,
        add_eos=False,
        max_leading_spaces=0,
        default_ids={},
    )


def bpe(
    vocabulary: Vocabulary,
    merges: list[str] | list[tuple[str, str]],
    *,
    ignore_merges: bool,
    unknown: str | None,
    byte_fallback: bool = False,
) -> models.BPE:
    """The library's BPE; `merges` are pairs, or texts with a space between the two.

    Raises:
        ModelError: a merge of tokens that are not there.
    """
    spellings = vocabulary.spellings
    try:
        vocab = dict(zip(spellings, range(len(spellings)), strict=True))
        pairs = [_pair(merge) if isinstance(merge, str) else merge for merge in merges]
        return models.BPE(
            vocab=vocab,
            merges=pairs,
            ignore_merges=ignore_merges,
            unk_token=unknown,
            fuse_unk=unknown is not None,
            byte_fallback=byte_fallback,
        )
    except Exception as error:  # bare Exception is what the library raises for a stray merge
        raise ModelError(
            f"the {len(merges):,} merges do not fit the {len(spellings):,} tokens: {error}",
            hint="the file is broken: convert the model again",
        ) from error


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ", 1)
    return left, right
