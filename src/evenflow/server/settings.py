"""What the server itself is told: where it listens, whom it lets in, and its limits.

The engine's options are `EngineConfig`'s business. Every value is checked when it is made.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass

from evenflow.errors import ConfigError
from evenflow.text.tool_calls import STYLES

PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the server behaves.

    Args:
        host: address to listen on.
        port: TCP port; 0 lets the system choose.
        api_keys: whoever shows one of these may use the server; none means everybody may.
        served_model_names: names under which clients ask for the model; the first one is used in
            answers. Empty means the name it was loaded by.
        max_num_queued_reqs: requests that may wait for a seat; one more is refused with 429.
        max_body_bytes: the largest request body.
        max_header_bytes: the largest request line and headers together.
        header_timeout_s: seconds in which they must have arrived, from the connection's begin or the
            first byte after an answer.
        request_timeout_s: a request that takes longer is cancelled; 0 is no limit.
        drain_timeout_s: how long running requests may go on after SIGTERM.
        stream_interval: tokens per message of a stream.
        max_stream_buffer_bytes: what a slow reader may leave unread before it is cut off, on top
            of what the operating system keeps for it.
        tool_call_parser: how the model writes its calls of tools; "auto" looks into its template.
        metrics_prefix: the metrics' names begin with it.
        public_metrics: /metrics needs no key.

    Raises:
        ConfigError: a value is out of range, or has no effect.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    max_num_queued_reqs: int = 1000
    max_body_bytes: int = 8 * 1024**2
    max_header_bytes: int = 64 * 1024
    header_timeout_s: float = 30.0
    request_timeout_s: float = 0.0
    drain_timeout_s: float = 30.0
    stream_interval: int = 1
    max_stream_buffer_bytes: int = 1024**2
    tool_call_parser: str = "auto"
    metrics_prefix: str = "evenflow"
    public_metrics: bool = False

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65_535)
        _check_range("max_num_queued_reqs", self.max_num_queued_reqs, 0, 10**6)
        _check_range("max_body_bytes", self.max_body_bytes, 1024, 2**31)
        _check_range("max_header_bytes", self.max_header_bytes, 1024, 2**24)
        _check_range("header_timeout", self.header_timeout_s, 0.05, 10**6)
        _check_range("request_timeout", self.request_timeout_s, 0, 10**6)
        _check_range("drain_timeout", self.drain_timeout_s, 0, 10**6)
        _check_range("stream_interval", self.stream_interval, 1, 10**6)
        _check_range("max_stream_buffer_bytes", self.max_stream_buffer_bytes, 1024, 2**31)
        if self.tool_call_parser not in {"auto", *STYLES}:
            raise ConfigError(
                f"tool_call_parser is {self.tool_call_parser!r}",
                hint=f"tool_call_parser takes one of auto, {', '.join(STYLES)}",
            )
        if PREFIX.fullmatch(self.metrics_prefix) is None:
            raise ConfigError(
                f"metrics_prefix is {self.metrics_prefix!r}",
                hint="use letters, digits and underscores, such as evenflow or vllm",
            )
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise ConfigError(
                    "an API key is empty, or holds characters that no header can carry",
                    hint="use letters, digits and punctuation, without spaces around them",
                )
        if self.public_metrics and not self.api_keys:
            raise ConfigError(
                "public_metrics is given, but without an API key everything is public",
                hint="leave it out, or give --api-key",
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise ConfigError(
            f"{name} is {value:,}, outside its range of {low:,} to {high:,}",
            hint=f"give {name} a value in that range",
        )
