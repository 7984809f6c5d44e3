"""Models for a server: one with a real forward pass and real text, one that says what it is told to."""

from __future__ import annotations

from evenflow.runner.reference import ReferenceRunner
from helpers.engines import SpellingRunner
from helpers.servers import LetterModel
from helpers.texts import EOS, tiny_tokenizer
from helpers.tiny_model import tiny_model

VOCABULARY = 266
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# each marks calls as the models of its style do, and shows tools, calls and results
TOOLS = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}MARK{{ c.function.name }} {{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}"
)
TEMPLATES = {
    "hermes": TOOLS.replace("MARK", "<tool_call>"),
    "llama3_json": TOOLS.replace("MARK", "<|python_tag|>"),
    "mistral": TOOLS.replace("MARK", "[TOOL_CALLS]"),
    "none": TOOLS.replace("MARK", "call "),
}


def tiny(template: str = PLAIN, **options) -> LetterModel:
    """Random weights, bytes as tokens: what it says makes no sense, but is a real distribution's."""
    values = {"num_kv_blocks": 512, "block_size": 4, "max_model_len": 480} | options
    runner = ReferenceRunner(
        tiny_model(3, vocab_size=VOCABULARY),
        num_blocks=values["num_kv_blocks"],
        block_size=values["block_size"],
    )
    return LetterModel(runner, tiny_tokenizer(chat_template=template), **values)


def telling(text: str, template: str = PLAIN) -> LetterModel:
    """A model whose every answer is `text`, token by token."""
    tokenizer = tiny_tokenizer(chat_template=template)
    script = [*tokenizer.encode(text, add_special_tokens=False), EOS]

    def draw(request, position) -> int:
        return script[min(position - request.num_prompt_tokens, len(script) - 1)]

    return LetterModel(SpellingRunner(draw), tokenizer)
