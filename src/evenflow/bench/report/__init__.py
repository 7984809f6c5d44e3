"""Reports of a run: one self-contained HTML file, and pictures."""

from __future__ import annotations

from evenflow.bench.report.write import contents_of, write_picture, write_report

__all__ = ["contents_of", "write_picture", "write_report"]
