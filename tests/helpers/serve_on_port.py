"""The synthetic server on a given port, with a child of its own: what a sweep has to end.

Usage: serve_on_port.py PIDS PORT BUDGET; writes the process ids of both into PIDS.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.synthetic import Plan
from helpers.synthetic_server import Behaviour, Server


async def serve(port: int, budget: int) -> None:
    server = Server(Plan(decode_ms=3, budget=budget), Behaviour())
    await asyncio.start_server(server.serve, "127.0.0.1", port, limit=2**24)
    await server.loop()


if __name__ == "__main__":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
    asyncio.run(serve(int(sys.argv[2]), int(sys.argv[3])))
