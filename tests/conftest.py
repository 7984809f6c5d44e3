"""Settings that every test shares."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# no test has a time limit; CI looks at the same examples each time, a person at new ones
settings.register_profile("evenflow", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("evenflow")

# a shell that starts the tests in the background has them ignore Ctrl-C, and what they start too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
