"""Records what Hugging Face transformers computes, for the tests to compare with.

Run it in an environment of its own; the project depends on none of these:

    python -m venv /tmp/golden-venv
    /tmp/golden-venv/bin/pip install torch "transformers>=5.24" accelerate gguf numpy
    /tmp/golden-venv/bin/python tests/golden/record.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Weights come through transformers' own GGUF loader, so that a mistake of ours in reading the file
cannot hide. Written beside this script, parts chosen by --only:

* logits: smollm2_logits.npz, 20 prompts of 1 to 2,000 tokens: 64 logits at up to 48 positions each,
  and greedy continuations of 64 tokens with their top-2 margins;
* greedy: smollm2_greedy.npz, 200 prompts and 64 greedy tokens each, with margins;
* tiny: tiny/<name>/, random Llama models as safetensors folders with logits.npz.

Prompts are text of the interpreter's own documentation; the token ids are stored, so the tests do
not depend on its version. An array `x` of several prompts is one flat `x` with `x_offsets`.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
PROMPT_LENGTHS = (
    1,
    2,
    3,
    5,
    8,
    13,
    15,
    16,
    17,
    31,
    33,
    64,
    100,
    127,
    129,
    257,
    500,
    777,
    1024,
    2000,
)
GREEDY_LENGTHS = (1, 4, 9, 16, 25, 50, 77, 128, 200, 333)  # 20 prompts of each: no padding
NUM_LOGITS, MAX_POSITIONS, NUM_TOKENS = 64, 48, 64

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # far from uniform attention, unlike the usual 0.02
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# name -> (changes to SMALL, number format of the file, largest shard)
TINY = {
    "gqa-tied": ({}, torch.float32, "1GB"),
    "mha-untied": (
        {"num_key_value_heads": 4, "tie_word_embeddings": False, "rms_norm_eps": 1e-3},
        torch.float16,
        "1GB",
    ),
    "mqa-linear": (
        {
            "num_key_value_heads": 1,
            "head_dim": 12,  # not hidden / heads
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        },
        torch.float32,
        "1GB",
    ),
    "llama3-sharded": (
        {
            "tie_word_embeddings": False,
            "num_hidden_layers": 3,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        torch.bfloat16,
        "20KB",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--only", choices=("logits", "greedy", "tiny"), action="append")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    parts = args.only or ["logits", "greedy", "tiny"]
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    if {"logits", "greedy"} & set(parts):
        folder, name = args.gguf.parent, args.gguf.name
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        text = "\n\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
        ids = np.array(tokenizer(text)["input_ids"], np.uint16)
        if "logits" in parts:
            record_logits(model.eval(), ids)
        if "greedy" in parts:
            record_greedy(model.eval(), ids)
    if "tiny" in parts:
        for name, (changes, dtype, shard) in TINY.items():
            record_tiny(name, LlamaConfig(**{**SMALL, **changes}), dtype, shard)


def cut_prompts(ids, lengths, seed):
    """Windows of the text at random places, one per length."""
    rng = np.random.default_rng(seed)
    starts = [int(rng.integers(0, len(ids) - n)) for n in lengths]
    return [ids[s : s + n] for s, n in zip(starts, lengths, strict=True)]


def flat(name, arrays):
    offsets = np.cumsum([0, *(len(a) for a in arrays)]).astype(np.int32)
    return {name: np.concatenate(arrays), f"{name}_offsets": offsets}


def greedy(model, prompts, num_tokens):
    """Greedy tokens and top-2 margins, [prompts, num_tokens] each; prompts are of one length."""
    step = torch.tensor(np.array(prompts, np.int64))
    cache, tokens, margins = None, [], []
    for _ in range(num_tokens):
        out = model(step, cache=cache, use_cache=True, logits_to_keep=1)
        cache, best = out.cache, out.logits[:, -1].topk(2)
        step = best.indices[:, :1]
        tokens.append(step[:, 0].numpy())
        margins.append((best.values[:, 0] - best.values[:, 1]).numpy())
    return np.array(tokens, np.uint16).T, np.array(margins, np.float32).T


def record_logits(model, ids):
    prompts = cut_prompts(ids, PROMPT_LENGTHS, seed=1)
    vocab = model.config.vocab_size
    logit_ids = np.sort(np.random.default_rng(2).choice(vocab, NUM_LOGITS, replace=False))
    positions, logits, tokens, margins = [], [], [], []
    for prompt in prompts:
        count = min(len(prompt), MAX_POSITIONS)
        chosen = np.unique(np.linspace(0, len(prompt) - 1, count).astype(np.int32))
        all_logits = model(torch.tensor(prompt[None].astype(np.int64))).logits[0].numpy()
        positions.append(chosen)
        logits.append(all_logits[chosen][:, logit_ids])
        drawn, margin = greedy(model, [prompt], NUM_TOKENS)
        tokens.append(drawn[0])
        margins.append(margin[0])
        print(f"prompt of {len(prompt)} tokens: {len(chosen)} positions", flush=True)
    np.savez_compressed(
        HERE / "smollm2_logits.npz",
        logit_ids=logit_ids.astype(np.int32),
        tokens=np.array(tokens),
        margins=np.array(margins),
        **flat("prompts", prompts),
        **flat("positions", positions),
        **flat("logits", logits),
    )


def record_greedy(model, ids):
    prompts, tokens, margins = [], [], []
    for seed, length in enumerate(GREEDY_LENGTHS):
        batch = cut_prompts(ids, [length] * 20, seed=100 + seed)
        drawn, margin = greedy(model, batch, NUM_TOKENS)
        prompts += batch
        tokens.append(drawn)
        margins.append(margin.astype(np.float16))
        print(f"20 prompts of {length} tokens", flush=True)
    np.savez_compressed(
        HERE / "smollm2_greedy.npz",
        tokens=np.concatenate(tokens),
        margins=np.concatenate(margins),
        **flat("prompts", prompts),
    )


def record_tiny(name, config, dtype, shard):
    torch.manual_seed(len(name))
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms start at one, which would hide a norm left out
            parameter.uniform_(0.5, 1.5)
        parameter.copy_(parameter.to(dtype).float())  # the file's rounding, before the logits
    folder = HERE / "tiny" / name
    prompt = torch.randint(0, config.vocab_size, (1, 150))
    logits = model(prompt).logits[0].numpy()
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(config.vocab_size)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    np.savez_compressed(
        folder / "logits.npz", prompt=prompt[0].numpy().astype(np.uint16), logits=logits[::10]
    )
    print(f"tiny model {name}: logits up to {abs(logits).max():.1f}", flush=True)


if __name__ == "__main__":
    main()
