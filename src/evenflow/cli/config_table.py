"""The effective configuration as lines for a person: value, origin, reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.config import EngineConfig


def config_lines(config: EngineConfig) -> Iterator[str]:
    """One line per option, in columns, and one that says what the KV pool holds."""
    rows = config.describe()
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row.reason]).rstrip()
    mib = config.kv_cache_memory_bytes / 2**20
    reason = config.origins["num_kv_blocks"].reason or "as given"
    yield f"the KV pool holds {config.num_kv_tokens:,} tokens in {mib:,.0f} MiB ({reason})"
