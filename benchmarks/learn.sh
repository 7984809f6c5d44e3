#!/bin/sh
# All the figures of docs/learn.md in one run of about ten minutes on two quiet cores.
#
#   benchmarks/learn.sh runs/learn          # each answer as a .txt, and a .json for programs
#
# A folder that holds results goes on where it was interrupted. EVENFLOW names the command.
set -u
out=${1:?"usage: benchmarks/learn.sh FOLDER"}
evenflow=${EVENFLOW:-.venv/bin/evenflow}
mkdir -p "$out" || exit 1
began=$(date +%s)
failed=""

# $1 is the name of the answer, the rest the command: its words for people, and as JSON
answer() {
    name=$1
    shift
    from=$(date +%s)
    {
        echo "\$ evenflow $*"
        echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg)"
        COLUMNS=120 "$evenflow" "$@"
        echo "exit code: $?"
    } > "$out/$name.txt" 2>&1
    grep -q '^exit code: 0$' "$out/$name.txt" || failed="$failed $name"
    echo "$name: $(($(date +%s) - from)) s"
}

# a sweep that is over answers from its folder at once
sweep() {
    name=$1
    shift
    answer "$name" sweep "$@" --result-dir "$out/$name"
    "$evenflow" sweep "$@" --result-dir "$out/$name" --json > "$out/$name.json" 2> /dev/null
}

{
    date -u
    grep -m 1 'model name' /proc/cpuinfo
    nproc
    "$evenflow" --version
} > "$out/machine.txt"

sweep 1-stall --experiment stall
sweep 2-fix --experiment fix
rm -f "$out/3-guess.jsonl"
answer 3-bench bench --streams 8 --inject 2000@2s --inject 4000@5s --output-len 1500 \
    --records "$out/3-guess.jsonl"
answer 3-guess blame "$out/3-guess.jsonl" --target 50
"$evenflow" blame "$out/3-guess.jsonl" --target 50 --json > "$out/3-guess.json" 2> /dev/null
sweep 3-budget --experiment budget --repeats 2
sweep 4-small --experiment budget --budgets 16,32,64,128,256 --repeats 1 --num-prompts 30
sweep 5-bonus --experiment bonus --repeats 3
answer 6-order compare local:policy=chunked local:policy=prefill-first --streams 8 \
    --inject 2000@1s --output-len 400 --pairs 3 --noise-pairs 2 --result-dir "$out/6-order"
sweep 7-graphs --experiment graphs
sweep 7-equality --experiment equality

echo "total: $(($(date +%s) - began)) s"
if [ -n "$failed" ]; then
    echo "failed:$failed (see the .txt of each)" >&2
    exit 1
fi
