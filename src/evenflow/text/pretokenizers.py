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
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
# letters that open a word in capitals, and those that go on in small ones; marks are of both
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


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


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Cut at every match of each pattern in turn, then spell bytes."""
    cuts = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, spell])


def _llama3() -> pre_tokenizers.PreTokenizer:
    return _split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}")


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _split(rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}")


def _qwen35() -> pre_tokenizers.PreTokenizer:
    word = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    rest = rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
    return _split(rf"{_CONTRACTION}|{word}|\p{{N}}|{rest}")


def _cased(digits: str, contraction: str = "") -> pre_tokenizers.PreTokenizer:
    """Words are cut where small letters are followed by capitals."""
    before = r"[^\r\n\p{L}\p{N}]?"
    small = f"{before}{_UPPER}*{_LOWER}+{contraction}"
    capital = f"{before}{_UPPER}+{_LOWER}*{contraction}"
    return _split(rf"{small}|{capital}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}")


def _tekken() -> pre_tokenizers.PreTokenizer:
    return _cased(r"\p{N}")


def _gpt4o() -> pre_tokenizers.PreTokenizer:
    return _cased(r"\p{N}{1,3}", f"{_CONTRACTION}?")


def _deepseek_coder() -> pre_tokenizers.PreTokenizer:
    wide = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
    return _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", wide, r"\p{N}")


_GPT2 = PreTokenizer(_gpt2)
_GPT2_NFC = PreTokenizer(_gpt2, nfc=True)
_DIGITS = PreTokenizer(_single_digits)
_LLAMA3 = PreTokenizer(_llama3, ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer(_llama3)
_QWEN2 = PreTokenizer(_qwen2, nfc=True)
_GPT4O = PreTokenizer(_gpt4o)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "exaone4": _GPT2,
    "mellum": _GPT2,
    "granite-docling": _GPT2,
    "olmo": _GPT2_NFC,
    "mpt": _GPT2_NFC,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": PreTokenizer(_single_digits, nfc=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": PreTokenizer(_llama3, ignore_merges=True),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen35": PreTokenizer(_qwen35),
    "deepseek-coder": PreTokenizer(_deepseek_coder),
    "tekken": PreTokenizer(_tekken, ignore_merges=True, add_bos=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
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
