"""Build a tokenizer from the key/value pairs of a GGUF file.

In: plain Python values by key. Out: `TokenizerParts`. Knows no file and no tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from evenflow.errors import ModelError
from evenflow.text import pretokenizers
from evenflow.text.parts import TokenizerParts
from evenflow.text.pieces import Pieces, byte_level_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = "tokenizer.ggml."
_KNOWN_KINDS = ("gpt2",)
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # values of `tokenizer.ggml.token_type`
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def load(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build the parts.

    Args:
        metadata: `tokenizer.ggml.*` and `tokenizer.chat_template`; other keys are not read.

    Raises:
        ModelError: another kind of tokenizer, a key that is missing, or keys that contradict.
    """
    kind = _value(metadata, "model", str)
    if kind not in _KNOWN_KINDS:
        raise ModelError(
            f"the model's tokenizer is of kind {kind!r}; known is {', '.join(_KNOWN_KINDS)} (BPE)",
            hint="take the model as a Hugging Face folder with a tokenizer.json",
        )
    rule = pretokenizers.find(_value(metadata, "pre", str))
    spellings: list[str] = _value(metadata, "tokens", list)
    backend = tokenizers.Tokenizer(_bpe(metadata, spellings, rule))
    backend.pre_tokenizer = rule.make()
    backend.decoder = decoders.ByteLevel()
    normalizer = rule.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer

    num_tokens = len(spellings)
    bos_id = _token_id(metadata, "bos_token_id", num_tokens)
    ends = [_token_id(metadata, key, num_tokens) for key in _ENDS]
    eos_ids = frozenset(token_id for token_id in ends if token_id is not None)
    special_ids, plain_ids = _added(metadata, num_tokens)
    special_ids |= eos_ids | ({bos_id} if bos_id is not None else set())
    plain_ids -= special_ids
    _add_tokens(backend, spellings, special_ids, plain_ids)
    _add_edges(backend, metadata, bos_id, ends[0], add_bos=rule.add_bos)
    return TokenizerParts(
        backend=backend,
        pieces=Pieces(
            _speller(spellings),
            byte_level_bytes,
            {token_id: spellings[token_id] for token_id in special_ids | plain_ids},
        ),
        num_tokens=num_tokens,
        bos_id=bos_id,
        eos_ids=eos_ids,
        special_ids=frozenset(special_ids),
        special_tokens=_names(metadata, spellings),
        max_leading_spaces=0,
        chat_template=_value(metadata, "chat_template", str, prefix="tokenizer.", required=False),
    )


def _value(
    metadata: Mapping[str, Any],
    name: str,
    kind: type,
    *,
    prefix: str = _KEY,
    required: bool = True,
) -> Any:
    value = metadata.get(prefix + name)
    if value is None and not required:
        return None
    if value is None:
        raise ModelError(
            f"the model file has no {prefix}{name}",
            hint="the file is incomplete or too old: convert the model again",
        )
    # bool is an int to Python, yet a flag is not an id
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ModelError(
            f"{prefix}{name} is a {type(value).__name__}, but a {kind.__name__} belongs there",
            hint="the file is broken: convert the model again",
        )
    return value


def _bpe(
    metadata: Mapping[str, Any], spellings: list[str], rule: pretokenizers.PreTokenizer
) -> models.BPE:
    merges: list[str] = _value(metadata, "merges", list)
    try:
        vocab = dict(zip(spellings, range(len(spellings)), strict=True))
        pairs = [_pair(merge) for merge in merges]
        return models.BPE(vocab=vocab, merges=pairs, ignore_merges=rule.ignore_merges)
    except Exception as error:  # bare Exception is what the library raises for a stray merge
        raise ModelError(
            f"the {len(merges):,} merges do not fit the {len(spellings):,} tokens: {error}",
            hint="the file is broken: convert the model again",
        ) from error


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ", 1)
    return left, right


def _speller(spellings: list[str]) -> Any:
    num_tokens = len(spellings)
    return lambda token_id: spellings[token_id] if token_id < num_tokens else None


def _token_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    token_id: int | None = _value(metadata, name, int, required=False)
    if token_id is not None and not 0 <= token_id < num_tokens:
        raise ModelError(
            f"{_KEY}{name} is {token_id:,}, but the tokens count 0 to {num_tokens - 1:,}",
            hint="the file is broken: convert the model again",
        )
    return token_id


def _added(metadata: Mapping[str, Any], num_tokens: int) -> tuple[set[int], set[int]]:
    """Ids of the special tokens, and of other tokens that are matched before BPE."""
    types: list[int] | None = _value(metadata, "token_type", list, required=False)
    if types is None:
        return set(), set()
    if len(types) != num_tokens:
        raise ModelError(
            f"the model file has {num_tokens:,} tokens, but {len(types):,} token types",
            hint="the file is broken: convert the model again",
        )
    special = {i for i, kind in enumerate(types) if kind in {_UNKNOWN, _CONTROL}}
    return special, {i for i, kind in enumerate(types) if kind == _USER_DEFINED}


def _add_tokens(
    backend: tokenizers.Tokenizer, spellings: list[str], special: set[int], plain: set[int]
) -> None:
    for token_ids, is_special in ((special, True), (plain, False)):
        tokens = [
            AddedToken(spellings[token_id], special=is_special, normalized=False)
            for token_id in sorted(token_ids)
            if spellings[token_id]
        ]
        if is_special:
            backend.add_special_tokens(tokens)
        else:
            backend.add_tokens(tokens)


def _add_edges(
    backend: tokenizers.Tokenizer,
    metadata: Mapping[str, Any],
    bos_id: int | None,
    eos_id: int | None,
    *,
    add_bos: bool,
) -> None:
    """Have `encode` put BOS before and EOS after a text, as the file says."""
    stated: bool | None = _value(metadata, "add_bos_token", bool, required=False)
    before = add_bos if stated is None else stated
    after: bool = _value(metadata, "add_eos_token", bool, required=False) or False
    for wanted, token_id, name in ((before, bos_id, "bos"), (after, eos_id, "eos")):
        if wanted and token_id is None:
            raise ModelError(
                f"{_KEY}add_{name}_token is set, but the file has no {_KEY}{name}_token_id",
                hint="the file is broken: convert the model again",
            )
    if before or after:
        # "B" and "E" are names inside this template, not text
        template = f"{'B ' if before else ''}$A{' E' if after else ''}"
        edges = [("B", bos_id)] * before + [("E", eos_id)] * after
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=edges
        )


def _names(metadata: Mapping[str, Any], spellings: list[str]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found = {}
    for key, name in names.items():
        token_id = _token_id(metadata, f"{key}_token_id", len(spellings))
        if token_id is not None:
            found[f"{name}_token"] = spellings[token_id]
    return found
