"""Train small SentencePiece models and record what transformers and SentencePiece make of texts.

    python tests/golden/record_sentencepiece.py        (needs sentencepiece, protobuf, transformers)

Four models, one of each kind that GGUF files carry, trained on the texts themselves: few pieces
and hard cases. Written are their GGUF metadata as llama.cpp's converter has it, and ids: of
transformers, reading the SentencePiece file with `legacy` (each text between special tokens by
itself, as SentencePiece and llama.cpp do), with special tokens as tokens and as text; and of
SentencePiece itself, which knows only text.
"""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from text_inputs import PIECE_TEXTS, TEXTS
from transformers import AutoTokenizer

OUT = Path(__file__).with_name("sentencepiece_cases.json")
RULES = "FB01\t66 69\nFF46\t66\nFF55\t75\nFF4C\t6C\n2026\t2E 2E 2E\nB2\t32\n3000\t20\n"
LIMITS = {"hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
UNTOUCHED = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
MODELS: dict[str, dict[str, Any]] = {
    "llama": UNTOUCHED
    | {
        "model_type": "bpe",
        "vocab_size": 560,
        "byte_fallback": True,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "character_coverage": 0.98,
        "control_symbols": ["[INST]", "[/INST]"],
    },
    "gemma": UNTOUCHED
    | {
        "model_type": "bpe",
        "vocab_size": 560,
        "byte_fallback": True,
        "allow_whitespace_only_pieces": True,
        "character_coverage": 0.98,
        "add_dummy_prefix": False,
        "control_symbols": ["<start_of_turn>", "<end_of_turn>"],
        "user_defined_symbols": ["\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<table>"],
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
    },
    "t5": {
        "model_type": "unigram",
        "vocab_size": 300,
        "character_coverage": 0.98,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
    },
    "unigram-bytes": UNTOUCHED
    | {
        "model_type": "unigram",
        "vocab_size": 520,
        "byte_fallback": True,
        "character_coverage": 0.98,
    },
}


def train(folder: Path, options: dict[str, Any]) -> Any:
    """Train into `folder`/tokenizer.model; returns the parsed model."""
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 2 + PIECE_TEXTS), encoding="utf-8")
    if "normalization_rule_name" not in options:
        rules = folder / "rules.tsv"
        rules.write_text(RULES)
        options = options | {"normalization_rule_tsv": str(rules)}
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), **LIMITS, **options
    )
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    return model


def gguf_keys(model: Any) -> dict[str, Any]:
    """The metadata of a file converted from this model."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    is_unigram = trainer.model_type == 1
    fields: dict[str, Any] = {
        "model": "t5" if is_unigram else "llama",
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.type for piece in model.pieces],
        "unknown_token_id": trainer.unk_id,
        "eos_token_id": trainer.eos_id,
        "add_space_prefix": normalizer.add_dummy_prefix,
        "add_bos_token": not is_unigram,
        "add_eos_token": is_unigram,
    }
    for name, token_id in (("bos", trainer.bos_id), ("padding", trainer.pad_id)):
        if token_id >= 0:
            fields[f"{name}_token_id"] = token_id
    if is_unigram:
        fields["remove_extra_whitespaces"] = normalizer.remove_extra_whitespaces
        if normalizer.precompiled_charsmap:
            fields["precompiled_charsmap"] = list(normalizer.precompiled_charsmap)
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def record(folder: Path, model: Any) -> dict[str, Any]:
    trainer = model.trainer_spec
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": True, "unk_token": "<unk>"}
    config["eos_token"] = trainer.eos_piece
    if trainer.bos_id >= 0:
        config["bos_token"] = trainer.bos_piece
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = AutoTokenizer.from_pretrained(folder)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    texts = [*TEXTS, *PIECE_TEXTS]

    def ids(*, as_text: bool) -> list[list[int]]:
        options = {"add_special_tokens": False, "split_special_tokens": as_text}
        return [theirs(text, **options).input_ids for text in texts]

    return {
        "metadata": gguf_keys(model),
        "ids": ids(as_text=False),
        "plain_ids": ids(as_text=True),
        "sentencepiece_ids": [pieces.encode(text) for text in texts],
    }


def main() -> None:
    packages = ("sentencepiece", "tokenizers", "transformers")
    found: dict[str, Any] = {name: metadata.version(name) for name in packages}
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = train(Path(folder), options)
            found[name] = record(Path(folder), model)
            print(f"{name}: {len(model.pieces)} pieces")
    OUT.write_text(json.dumps(found, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{OUT.name}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
