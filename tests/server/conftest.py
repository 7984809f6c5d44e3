"""Servers for the tests of this folder."""

from __future__ import annotations

import pytest

from helpers.servers import serving


@pytest.fixture(scope="module")
def served():
    """One server for all tests of a module that leave nothing behind."""
    with serving() as found:
        yield found
