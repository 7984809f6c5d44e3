"""Names the prompt that caused each stall, from records of streams alone or with the server's help."""

from __future__ import annotations

from evenflow.bench.blame.judge import blame
from evenflow.bench.blame.model import Blame, BlameOptions

__all__ = ["Blame", "BlameOptions", "blame"]
