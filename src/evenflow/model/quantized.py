"""Refuses Hugging Face folders whose weights are packed in a way that is not read here.

In: config.json and the folder. Out: nothing, or an error that says what to take instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# files of older quantisers, which write nothing into config.json
_MARKERS = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    """Return if the folder's weights are plain numbers.

    Raises:
        ModelError: fp8, GPTQ, AWQ, bitsandbytes and whatever else config.json names.
    """
    method = _method(config)
    for marker, name in _MARKERS.items():
        if method is None and (folder / marker).is_file():
            method = name
    if method is not None:
        raise ModelError(
            f"the weights of {folder} are quantised with {method}, which is not supported",
            hint="take the model's original folder (bf16 or f16), to which --weights int8 can be"
            " applied, or a GGUF file of it (Q8_0, Q4_0, Q4_K, ...)",
        )


def _method(config: Mapping[str, Any]) -> str | None:
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return None
    if not isinstance(found, dict):
        return repr(found)
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return f"bitsandbytes ({'4' if found.get('load_in_4bit') else '8'} bits)"
    method = str(found.get("quant_method") or found.get("quant_algo") or "an unnamed method")
    bits = found.get("bits") or found.get("w_bit")
    return f"{method} ({bits} bits)" if bits else method
