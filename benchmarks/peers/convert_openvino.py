"""Makes OpenVINO's two models from the F16 GGUF file; runs in OpenVINO's environment.

    python -m peers.convert_openvino MODELS

GenAI's own reader builds the graph, so that no other converter, and no PyTorch, is needed. The int8
weights are NNCF's default for them: asymmetric, one scale per output channel.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nncf
import openvino as ov
import openvino_genai as genai


def main() -> None:
    models = Path(sys.argv[1])
    plain, small = models / "openvino-f16", models / "openvino-int8"
    if not plain.exists():
        part = models / "openvino-f16.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        source = part / "model.gguf"
        source.hardlink_to(models / "smollm2-f16.gguf")
        genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
        source.unlink()
        part.rename(plain)
    if not small.exists():
        part = models / "openvino-int8.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(plain, part)
        for file in part.glob("openvino_model.*"):
            file.unlink()
        model = ov.Core().read_model(plain / "openvino_model.xml")
        smaller = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        ov.save_model(smaller, part / "openvino_model.xml")
        part.rename(small)


if __name__ == "__main__":
    main()
