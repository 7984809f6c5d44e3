"""This engine beside others on the same machine, weights and token ids: `make bench-peers`.

`plan.py` says what is run, `install.py` and `weights.py` make the peers ready, `worker.py` runs one peer in
its own interpreter, `conduct.py` takes turns, `figures.py` and `table.py` say what came out.
"""
