"""How text is cut into words before BPE, by the name a GGUF file gives (`tokenizer.ggml.pre`).

The file carries only that name; the rule behind it is part of the model's definition, as its
original tokenizer.json states it. A wrong rule gives wrong ids without any error, so an unknown
name is refused. In: a name. Out: objects of `tokenizers`. Knows no vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class PreTokenizer(NamedTuple):
    """One rule.

    `ignore_merges`: a word that is a token is taken whole, merges or not. `add_bos`: what holds
    where the file does not say.
    """

    make: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to the text before it is cut."""
        return normalizers.NFC() if self.nfc else None


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


def _split(max_digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex(f"{_CONTRACTION}|{_WORD}|{max_digits}|{_REST}")
    cut = pre_tokenizers.Split(pattern, behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, spell])


def _llama3() -> pre_tokenizers.PreTokenizer:
    return _split(r"\p{N}{1,3}")


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _split(r"\p{N}")


_GPT2 = PreTokenizer(_gpt2)
_DIGITS = PreTokenizer(_single_digits)
_LLAMA3 = PreTokenizer(_llama3, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer(_qwen2, nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def find(name: str) -> PreTokenizer:
    """The rule of that name.

    Raises:
        ModelError: no such rule is known.
    """
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        raise ModelError(
            f"the model's pre-tokenizer is {name!r}, which is not known",
            hint=f"known are {', '.join(PRE_TOKENIZERS)}; the model's Hugging Face folder with "
            "its tokenizer.json works too",
        )
    return rule
