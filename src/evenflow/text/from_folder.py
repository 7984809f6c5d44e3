"""Build a tokenizer from a Hugging Face folder.

In: a folder with tokenizer.json and, as far as they exist, tokenizer_config.json,
special_tokens_map.json, generation_config.json, config.json and chat_template.jinja. Out:
`TokenizerParts`. Knows no weights.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import tokenizers
from tokenizers import AddedToken

from evenflow.errors import ModelError
from evenflow.text.parts import TokenizerParts
from evenflow.text.pieces import Pieces, byte_level_bytes, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SPACE = "\u2581"  # lower one eighth block, SentencePiece's sign for a space
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def load(folder: Path) -> TokenizerParts:
    """Read the folder.

    Raises:
        ModelError: no tokenizer.json, a file that is not what it should be, a special token that
            is not in the vocabulary, or a decoder that is not known.
    """
    backend = _backend(folder)
    config = _json(folder / "tokenizer_config.json")
    _add_missing(backend, config, folder)
    added = backend.get_added_tokens_decoder()
    bytes_of, max_leading_spaces = _decoder(backend, folder)
    names = _names(_json(folder / "special_tokens_map.json")) | _names(config)
    num_tokens = max(backend.get_vocab_size(), *(token_id + 1 for token_id in added), 0)
    return TokenizerParts(
        backend=backend,
        pieces=Pieces(
            partial(_spelling, backend, num_tokens),
            bytes_of,
            {token_id: token.content for token_id, token in added.items()},
        ),
        num_tokens=num_tokens,
        bos_id=_id_of(backend, names, "bos_token", folder),
        eos_ids=_eos_ids(backend, names, folder),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        special_tokens=names,
        max_leading_spaces=max_leading_spaces,
        chat_template=_chat_template(folder, config),
    )


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        hint = "only folders with a tokenizer.json are read"
        if (folder / "tokenizer.model").is_file():
            hint = (
                "its tokenizer.model must first be converted: save the tokenizer with transformers"
            )
        raise ModelError(f"{folder} holds no tokenizer.json", hint=hint)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(
            f"{path} cannot be read: {error}", hint="fetch the file again; it may be cut off"
        ) from error
    backend.no_padding()  # a file may carry both; a prompt is neither filled up nor cut
    backend.no_truncation()
    return backend


def _json(path: Path) -> dict[str, Any]:
    """A file's object; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ModelError(
            f"{path} is not JSON: {error}", hint="fetch the file again; it may be cut off"
        ) from error
    if not isinstance(value, dict):
        raise ModelError(
            f"{path} holds a {type(value).__name__}, not an object", hint="fetch the file again"
        )
    return value


def _add_missing(backend: tokenizers.Tokenizer, config: dict[str, Any], folder: Path) -> None:
    """Add the tokens that only tokenizer_config.json lists, at the ids it gives them."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        tokens = [(int(key), fields, fields["content"]) for key, fields in listed.items()]
        tokens.sort(key=lambda token: token[0])  # an added token takes the next free id
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"added_tokens_decoder in tokenizer_config.json of {folder} is broken: {error!r}",
            hint="it maps token ids to objects with a content: fetch the file again",
        ) from error
    for token_id, fields, content in tokens:
        if backend.token_to_id(content) is None:
            flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
            token = AddedToken(content, **{name: bool(fields.get(name)) for name in flags})
            backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
        if backend.token_to_id(content) != token_id:
            raise ModelError(
                f"{content!r} has id {token_id} in tokenizer_config.json of {folder}, but "
                f"{backend.token_to_id(content)} in its tokenizer.json",
                hint="the two files belong to different models: fetch the folder again",
            )


def _spelling(backend: tokenizers.Tokenizer, num_tokens: int, token_id: int) -> str | None:
    return backend.id_to_token(token_id) if token_id < num_tokens else None


def _decoder(backend: tokenizers.Tokenizer, folder: Path) -> tuple[Callable[[str], bytes], int]:
    """How a token's spelling is read, and how many spaces `decode` takes off the front."""
    steps = _flat(orjson.loads(backend.decoder.__getstate__())) if backend.decoder else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return byte_level_bytes, 0
    known = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    space, leading = _SPACE, 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(sign)}, "content": " "}:
                space = sign
            case {"type": "Metaspace", "replacement": str(sign)}:
                space = sign
                leading = 0 if step.get("prepend_scheme") == "never" else 1
            case {"type": "Strip", "content": " ", "start": int(leading), "stop": 0}:
                pass
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                known = set()
    if not kinds or not kinds <= known:
        raise ModelError(
            f"the decoder in tokenizer.json of {folder} is {', '.join(sorted(kinds)) or 'missing'}",
            hint="known are ByteLevel and SentencePiece's (Metaspace, or Replace and ByteFallback)",
        )
    return partial(sentencepiece_bytes, space=space, byte_fallback="ByteFallback" in kinds), leading


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flat(part)]


def _names(fields: dict[str, Any]) -> dict[str, str]:
    """Special tokens by name; a file gives each as a str or as an object with its content."""
    found = {}
    for name in _NAMES:
        value = fields.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _id_of(
    backend: tokenizers.Tokenizer, names: dict[str, str], name: str, folder: Path
) -> int | None:
    if name not in names:
        return None
    token_id = backend.token_to_id(names[name])
    if token_id is None:
        raise ModelError(
            f"the {name} of {folder} is {names[name]!r}, which its tokenizer.json does not hold",
            hint="the files belong to different models: fetch the folder again",
        )
    return token_id


def _eos_ids(backend: tokenizers.Tokenizer, names: dict[str, str], folder: Path) -> frozenset[int]:
    """The tokenizer's own, and all of generation_config.json (config.json where that has none)."""
    own = _id_of(backend, names, "eos_token", folder)
    ids = set() if own is None else {own}
    for file in ("generation_config.json", "config.json"):
        value = _json(folder / file).get("eos_token_id")
        if value is None:
            continue
        listed = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in listed):
            raise ModelError(
                f"eos_token_id in {folder / file} is {value!r}",
                hint="it takes a token id or a list of token ids",
            )
        return frozenset(ids.union(listed))
    return frozenset(ids)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{path} is not UTF-8: {error}", hint="fetch the file again"
            ) from error
    value = config.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(value, list):  # several by name, as older files have them
        value = next(
            (
                entry.get("template")
                for entry in value
                if isinstance(entry, dict) and entry.get("name") == "default"
            ),
            None,
        )
    if value is not None and not isinstance(value, str):
        raise ModelError(
            f"the chat template of {folder} is a {type(value).__name__}, not a text",
            hint="fetch the model again",
        )
    return value
