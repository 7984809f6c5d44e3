"""Who computes what in the next step: integers and lists only.

No arrays, no clock and no I/O, so that the same code is fuzzed, simulated and served.
"""
