"""Build a tokenizer from the key/value pairs of a GGUF file.

In: plain Python values by key. Out: `TokenizerParts`. Knows no file and no tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, processors

from evenflow.errors import ModelError
from evenflow.text.gguf_bpe import byte_level
from evenflow.text.gguf_keys import CONTROL, PREFIX, UNKNOWN, USER_DEFINED, Keys, Vocabulary
from evenflow.text.gguf_sentencepiece import SPACE, score_bpe, unigram
from evenflow.text.parts import GgufKind, TokenizerParts
from evenflow.text.pieces import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


KINDS: dict[str, Callable[[Keys, Vocabulary], GgufKind]] = {
    "gpt2": byte_level,
    "llama": score_bpe,
    "t5": unigram,
}
_ENDS = ("eos", "eot", "eom")
# control tokens that end a turn or a text: many files name only one end, chat templates write others
_END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<EOT>",
    }
)
_KEEP_SPACES = frozenset({"<unk>", "<s>", "<|endoftext|>"})  # Phi-3's tokens that eat none


def load(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Build the parts.

    Args:
        metadata: `tokenizer.ggml.*` and `tokenizer.chat_template`; of other keys only
            `general.architecture` is read.

    Raises:
        ModelError: another kind of tokenizer, a key that is missing, or keys that contradict.
    """
    keys = Keys(metadata)
    name, build = _kind(keys)
    vocabulary = keys.vocabulary()
    is_pieces = name != "gpt2"
    is_prefixed = is_pieces and keys.flag("add_space_prefix", default=True)
    if is_prefixed:
        vocabulary = _with_plain_spaces(vocabulary)
    parts = build(keys, vocabulary)
    spellings, num_tokens = vocabulary.spellings, len(vocabulary.spellings)

    def token_id(name: str) -> int | None:
        default = parts.default_ids.get(name)
        return keys.token_id(f"{name}_token_id", num_tokens, default=default)

    bos_id, eos_id = token_id("bos"), token_id("eos")
    special_ids = vocabulary.of_type(UNKNOWN, CONTROL)
    named_ends = {i for i in special_ids if spellings[i] in _END_NAMES}
    eos_ids = {i for i in map(token_id, _ENDS) if i is not None} | named_ends
    special_ids |= eos_ids | ({bos_id} if bos_id is not None else set())
    plain_ids = vocabulary.of_type(USER_DEFINED) - special_ids
    # Phi-3's tokenizer.json: its tokens take the whitespace behind them; GGUF has no key for that
    eats_spaces = metadata.get("general.architecture") == "phi3" and name == "llama"
    special = [spellings[i] for i in sorted(special_ids) if spellings[i]]
    parts.backend.add_special_tokens(
        [
            AddedToken(text, normalized=False, rstrip=eats_spaces and text not in _KEEP_SPACES)
            for text in special
        ]
    )
    # user-defined pieces have U+2581 for their spaces, as the text has once it is normalized; a
    # normalizer that puts a space in front would do so to each piece too
    in_normalized = is_pieces and not is_prefixed
    plain = [spellings[i] for i in sorted(plain_ids) if spellings[i]]
    parts.backend.add_tokens([AddedToken(text, normalized=in_normalized) for text in plain])
    _add_edges(parts, keys, bos_id, eos_id)
    return TokenizerParts(
        backend=parts.backend,
        pieces=Pieces(
            _speller(spellings),
            parts.bytes_of,
            {i: spellings[i] for i in special_ids | (set() if is_pieces else plain_ids)},
        ),
        num_tokens=num_tokens,
        bos_id=bos_id,
        eos_ids=frozenset(eos_ids),
        special_ids=frozenset(special_ids),
        special_tokens=_names(token_id, spellings),
        max_leading_spaces=parts.max_leading_spaces,
        chat_template=keys.value("chat_template", str, prefix="tokenizer.", required=False),
    )


def _kind(keys: Keys) -> tuple[str, Callable[[Keys, Vocabulary], GgufKind]]:
    name = keys.value("model", str)
    if name not in KINDS:
        raise ModelError(
            f"the model's tokenizer is of kind {name!r}; known are {', '.join(KINDS)} (byte-level"
            " BPE, SentencePiece's BPE and unigram)",
            hint="take the model as a Hugging Face folder with a tokenizer.json",
        )
    return name, KINDS[name]


def _with_plain_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """User-defined pieces with real spaces: they are found in the text before it is normalized."""
    spellings = list(vocabulary.spellings)
    taken = set(spellings)
    for token_id in vocabulary.of_type(USER_DEFINED):
        plain = spellings[token_id].replace(SPACE, " ")
        if plain not in taken:
            spellings[token_id] = plain
    return Vocabulary(spellings, vocabulary.types)


def _speller(spellings: list[str]) -> Any:
    num_tokens = len(spellings)
    return lambda token_id: spellings[token_id] if token_id < num_tokens else None


def _add_edges(kind: GgufKind, keys: Keys, bos_id: int | None, eos_id: int | None) -> None:
    """Have `encode` put BOS before and EOS after a text, as the file says."""
    before = keys.flag("add_bos_token", default=kind.add_bos)
    after = keys.flag("add_eos_token", default=kind.add_eos)
    for wanted, token_id, name in ((before, bos_id, "bos"), (after, eos_id, "eos")):
        if wanted and token_id is None:
            raise ModelError(
                f"{PREFIX}add_{name}_token is set, but the file has no {PREFIX}{name}_token_id",
                hint="the file is broken: convert the model again",
            )
    if before or after:
        # "B" and "E" are names inside this template, not text
        template = f"{'B ' if before else ''}$A{' E' if after else ''}"
        edges = [("B", bos_id)] * before + [("E", eos_id)] * after
        kind.backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=edges
        )


def _names(token_id: Callable[[str], int | None], spellings: list[str]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {name: token_id(key) for key, name in names.items()}
    return {f"{name}_token": spellings[i] for name, i in ids.items() if i is not None}
