"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# no test has a time limit; CI looks at the same examples each time, a person at new ones
settings.register_profile("evenflow", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("evenflow")
