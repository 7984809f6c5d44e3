"""Small tokenizers, and the real one where it is installed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from evenflow.errors import ModelError
from evenflow.text.pieces import BYTE_OF
from evenflow.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

MERGES = ["t h", "th e", "Ġ the", "i n", "in g", "Ġ Ġ", "ĠĠ ĠĠ"]
BOS, EOS, TOOL = 263, 264, 265
GOLDEN = Path(__file__).parents[1] / "golden" / "text_cases.json"


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF keys of a byte-level BPE: 256 bytes, 7 merges, BOS, EOS and one plain added token.

    `changes` replaces values by the last part of their key; None takes a key out.
    """
    alphabet = sorted(BYTE_OF, key=BYTE_OF.__getitem__)
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in MERGES), "<s>", "</s>", "<tool x>"]
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * 263 + [3, 3, 4],
        "merges": MERGES,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **changes,
    }
    found = {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}
    template = found.pop("tokenizer.ggml.chat_template", None)
    return found | ({"tokenizer.chat_template": template} if template is not None else {})


def tiny_tokenizer(**changes: Any) -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata(**changes))


def write_folder(folder: Path, tokenizer_json: str, files: Mapping[str, Any] | None = None) -> Path:
    """A Hugging Face folder; a str is written as it is, anything else as JSON."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    for name, value in (files or {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def tiny_json() -> str:
    """tokenizer.json of the tiny byte-level BPE."""
    return tiny_tokenizer()._backend.to_str()


def sentencepiece_json(*, metaspace: bool) -> str:
    """tokenizer.json with byte fallback, its spaces undone by Metaspace or by Replace and Strip."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [*"abcdefghij", "ab", "▁ab", "é", "日"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("a", "b"), ("▁", "ab")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        undo = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    else:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        undo = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    backend.decoder = decoders.Sequence(undo)
    return backend.to_str()


@cache
def smollm2_metadata() -> dict[str, Any]:
    from evenflow.model.gguf import read_gguf
    from evenflow.model.load import resolve_model

    try:
        path = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(error.message)
    return read_gguf(path).metadata


@cache
def smollm2_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


@cache
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))
