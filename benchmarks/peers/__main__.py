"""The command behind `make bench-peers`.

python -m peers --peers evenflow,openvino --repeats 5 --minutes 10 --out benchmarks/results
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import signal
import sys
from pathlib import Path

from evenflow.bench.machine import describe_machine
from evenflow.errors import EvenflowError
from peers.conduct import conduct
from peers.install import cache_folder, make_ready
from peers.plan import LONG_TOKENS, OUTPUT_TOKENS, PEERS, jobs
from peers.table import as_data, as_markdown


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; an unknown peer is an error."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", default=",".join(names), help=f"among {', '.join(names)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no repeat beyond this")
    parser.add_argument("--long-tokens", type=int, default=LONG_TOKENS)
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    parser.add_argument("--out", type=Path, help="folder for the table, as .md and .json")
    parser.add_argument("--install-only", action="store_true")
    options = parser.parse_args(arguments)
    options.chosen = options.peers.split(",")
    unknown = [name for name in options.chosen if name not in names]
    if unknown:
        parser.error(f"there is no peer {unknown[0]!r}; known: {', '.join(names)}")
    if options.repeats < 1 or options.long_tokens < 16 or options.output_tokens < 2:
        parser.error("at least 1 repeat, 16 long tokens and 2 output tokens are needed")
    return options


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the workers end with it
    peers = [peer for peer in PEERS if peer.name in options.chosen]
    cache = cache_folder()
    try:
        ready = make_ready(peers, cache, say)
    except EvenflowError as e:
        say(f"error: {e.message}\nhint: {e.hint}")
        return 1
    for engine, one in ready.items():
        say(f"{engine}: {one.problem or 'ready'}")
    if options.install_only:
        return 0
    machine, date = describe_machine(), dt.datetime.now(dt.UTC).date().isoformat()
    todo = jobs(options.long_tokens, options.output_tokens)
    run = conduct(
        peers, ready, todo, cache, repeats=options.repeats, minutes=options.minutes, say=say
    )
    page = as_markdown(run, peers, machine, date)
    print(page)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"peers-{date}.md").write_text(page, encoding="utf-8")
        data = json.dumps(as_data(run, peers, machine, date), indent=1)
        (options.out / f"peers-{date}.json").write_text(data + "\n", encoding="utf-8")
        say(f"written to {options.out}/peers-{date}.md and .json")
    return 0 if run.measured else 1


if __name__ == "__main__":
    sys.exit(main())
