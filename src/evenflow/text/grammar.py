"""Which tokens may follow, so that an answer has the form that was asked for.

In: a tokenizer's tokens, and `StructuredOutputs`. Out: masks over token ids. The parsing is
llguidance's: a grammar over bytes, walked along the vocabulary's trie. Knows no request: what was
generated so far is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import llguidance

from evenflow.errors import InvalidRequestError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.structured import StructuredOutputs

_LIMITS = llguidance.LLParserLimits(verbose_errors=False)
_HINTS = {
    "json": "change the schema so that some value satisfies it, with keywords that are supported",
    "regex": "use the syntax of Rust's regex crate, without look-around and back-references",
    "choice": "give a shorter list",
    "grammar": "write the grammar in Lark's syntax with a rule `start`, or as GBNF with `root`",
    "json_object": "leave structured_outputs out",
}


class GrammarMasks:
    """A `MaskSource`: walks one grammar along one answer.

    It follows whatever it is asked about: it goes on from the last answer where the new one does,
    and steps back where it differs.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._seen: list[int] = []

    def copy(self) -> GrammarMasks:
        """The same grammar for another answer, from its beginning."""
        matcher = self._matcher.deep_copy()
        matcher.reset()
        return GrammarMasks(matcher)

    def allowed(self, generated: Sequence[int]) -> bytes:
        """See `MaskSource`. Where a token does not fit the grammar, the mask before it is given."""
        answer = list(generated)
        matcher, seen = self._matcher, self._seen
        if answer[: len(seen)] != seen:
            common = next(
                (i for i, (a, b) in enumerate(zip(answer, seen, strict=False)) if a != b),
                min(len(answer), len(seen)),
            )
            matcher.rollback(len(seen) - common)
            del seen[common:]
        new = answer[len(seen) :]
        if new:
            seen += new[: matcher.try_consume_tokens(new)]
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidRequestError(
                f"structured_outputs cannot be followed: {_in_one_line(matcher.get_error())}",
                hint="make the schema or grammar simpler",
            )
        return mask


class Grammars:
    """Compiles forms for one vocabulary.

    Making one takes about a second per 100,000 tokens, most of it with the GIL held.

    Args:
        tokens: the bytes of each token, by id.
        special_ids: tokens that no text can spell.
        eos_ids: tokens that end an answer, which they may where it is complete.
        encode: token ids of a text.

    Raises:
        ModelError: no token ends a sequence.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        special_ids: frozenset[int],
        eos_ids: frozenset[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        if not eos_ids:
            raise ModelError(
                "the model has no end-of-sequence token, so no structured output could end",
                hint="use a model whose tokenizer names one",
            )
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokens, special_ids, min(eos_ids), encode)),
            eos_token=sorted(eos_ids),
            slices=[],  # they make the first mask wait for 0.3 s and later ones little faster
        )

    def compile(self, form: StructuredOutputs) -> GrammarMasks:
        """Masks for a form.

        Raises:
            InvalidRequestError: a schema that nothing satisfies or that has keywords which are not
                supported, or an expression or grammar that cannot be read.
        """
        kind, value = form.given
        try:
            matcher = llguidance.LLMatcher(
                self._tokenizer, _written(kind, value), log_level=0, limits=_LIMITS
            )
            error = matcher.get_error()
            if not error:
                matcher.compute_bitmask()  # finds out whether anything can be spelt
                error = matcher.get_error()
                if error.startswith("NoExtension"):
                    error = "no text has this form"
        except (ValueError, TypeError) as failed:
            error = str(failed)
        if error:
            raise InvalidRequestError(
                f"structured_outputs.{kind} cannot be used: {_in_one_line(error)}",
                hint=_HINTS[kind],
            )
        return GrammarMasks(matcher)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: frozenset[int],
        eos_id: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return self._encode(text)


def _written(kind: str, value: object) -> str:
    """A form as a grammar of llguidance."""
    match kind, value:
        case "json", str(text):
            return llguidance.grammar_from("json_schema", text)
        case "json", schema:
            return llguidance.grammar_from("json_schema", json.dumps(schema, default=_plain))
        case "json_object", _:
            return llguidance.grammar_from("json_schema", '{"type": "object"}')
        case "choice", tuple(texts):
            words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            return llguidance.grammar_from("lark", f"start: {words}")
        case "regex", str(text):
            return llguidance.grammar_from("regex", text)
        case _:
            text = str(value)
            return llguidance.grammar_from("gbnf" if "::=" in text else "lark", text)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _in_one_line(error: str) -> str:
    """What a parser says in several lines: the one that names the fault, where one does."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (named or lines or [error])[0]
