"""Records what transformers computes on random tiny models of each family; see record.py.

    /tmp/golden-venv/bin/python tests/golden/record_families.py

Writes families/<name>/: a folder as transformers saves it, in bfloat16, and logits.npz with a
prompt of 150 tokens, longer than every window and every original context here, and the float32
logits of every tenth position; for longrope also those of a prompt within the original context.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

FOLDER = Path(__file__).parent / "families"
SHORT = 50
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NARROW = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.05, 1.1, 1.3, 1.5, 2.0],
    "long_factor": [1.1, 1.5, 2.0, 3.5, 6.0, 9.0],
    "original_max_position_embeddings": 64,
}
# name -> (prefix of the classes' names, changes to SMALL)
FAMILIES = {
    "llama-dynamic": (
        "Llama",
        {
            "max_position_embeddings": 60,  # x factor = the prompt's length
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.5},
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 20, "tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-yarn": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 33,
            "max_window_layers": 1,
            "max_position_embeddings": 40,
            "rope_parameters": YARN | {"original_max_position_embeddings": 40},
        },
    ),
    "qwen3": ("Qwen3", {"rms_norm_eps": 1e-5}),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 24,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,  # low, so that they bend something
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        NARROW
        | {
            "num_hidden_layers": 6,
            "sliding_window": 24,
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": (
        "Phi3",
        NARROW
        | {
            "head_dim": None,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 256,
            "sliding_window": 100,
            "tie_word_embeddings": False,
            "rope_parameters": LONGROPE,
        },
    ),
    "olmo2": ("Olmo2", NARROW | {"head_dim": None}),
    "smollm3": ("SmolLM3", NARROW | {"head_dim": None, "num_hidden_layers": 4}),
    "granite": (
        "Granite",
        NARROW
        | {
            "head_dim": None,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
    ),
}


def main() -> None:
    torch.set_grad_enabled(False)
    for name in sys.argv[1:] or FAMILIES:
        record(name, *FAMILIES[name])


def record(name, prefix, changes):
    kind = f"{prefix}TextConfig" if prefix == "Gemma3" else f"{prefix}Config"
    values = {key: value for key, value in (SMALL | changes).items() if value is not None}
    config = getattr(transformers, kind)(**values)
    config._attn_implementation = "eager"  # the only one with soft caps
    torch.manual_seed(sum(map(ord, name)))
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases start at a constant, which would hide a lack
            parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
        parameter.copy_(parameter.bfloat16().float())  # the file's rounding, before the logits
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    prompt = torch.randint(0, config.vocab_size, (1, 150))
    arrays = {"prompt": prompt[0].numpy().astype(np.uint16)}
    arrays["logits"] = model(prompt, use_cache=False).logits[0].numpy()[::10]
    if name == "phi3":
        arrays["short_logits"] = model(prompt[:, :SHORT], use_cache=False).logits[0].numpy()[::10]
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(config.vocab_size)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"), pretty=False)
    np.savez_compressed(folder / "logits.npz", **arrays)
    print(f"{name}: logits up to {abs(arrays['logits']).max():.1f}", flush=True)


if __name__ == "__main__":
    main()
