"""The live page: one HTML file that asks nothing of any other host."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import Response

# the page may talk to this server alone, and nobody may frame it
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


@cache
def _page() -> bytes:
    return (files("evenflow.server") / "page.html").read_bytes()


def page_response() -> Response:
    """The page."""
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
    return Response(_page(), media_type="text/html; charset=utf-8", headers=headers)
