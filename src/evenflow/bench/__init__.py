"""Instruments: records, metrics, comparisons."""
