"""Record what llama.cpp and transformers make of the cases in text_inputs.py.

    python tests/golden/record_text.py llama.cpp MODEL.gguf      (needs the package xllamacpp)
    python tests/golden/record_text.py llama.cpp OTHER.gguf PRE  (the same with another rule)
    python tests/golden/record_text.py transformers MODEL.gguf   (needs transformers, torch, gguf)

OTHER.gguf is the same vocabulary cut by another rule, as made by
`gguf-new-metadata --pre-tokenizer PRE MODEL.gguf OTHER.gguf`. Each run fills its own fields of text_cases.json. The ids of llama.cpp are the truth for a GGUF
file. transformers' reading of such files knows no rule for digits, so a few ids differ there; they
are recorded too, so that a test shows which and no others.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

from text_inputs import CHATS, TEXTS

OUT = Path(__file__).with_name("text_cases.json")


def from_llama_cpp(model: Path, pre: str = "") -> dict[str, object]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 256
    params.warmup = False
    server = xllamacpp.Server(params)

    def encode(text: str, *, special: bool) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": special}
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    if pre:
        return {f"ids of {pre}": [encode(text, special=True) for text in TEXTS]}
    return {
        "xllamacpp": metadata.version("xllamacpp"),
        "texts": TEXTS,
        "ids": [encode(text, special=True) for text in TEXTS],
        "plain_ids": [encode(text, special=False) for text in TEXTS],
    }


def from_transformers(model: Path) -> dict[str, object]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    chats = []
    for chat in CHATS:
        rendered = tokenizer.apply_chat_template(
            chat["messages"],
            chat_template=chat["template"],
            tools=chat.get("tools"),
            add_generation_prompt=chat.get("add_generation_prompt", True),
            tokenize=False,
            **chat.get("variables", {}),
        )
        chats.append({**chat, "rendered": rendered})
    own = tokenizer.apply_chat_template(CHATS[1]["messages"], tokenize=False)
    return {
        "transformers": metadata.version("transformers"),
        "transformers_ids": [tokenizer(text).input_ids for text in TEXTS],
        "transformers_texts": [tokenizer.decode(tokenizer(text).input_ids) for text in TEXTS],
        "chats": chats,
        "own_template": {"messages": CHATS[1]["messages"], "rendered": own},
    }


def main() -> None:
    source, model, *more = sys.argv[1:]
    record = {"llama.cpp": from_llama_cpp, "transformers": from_transformers}[source]
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    known |= record(Path(model), *more)
    OUT.write_text(json.dumps(known, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{OUT.name}: {len(TEXTS)} texts, {len(CHATS)} chats, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
