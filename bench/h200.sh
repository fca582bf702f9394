#!/usr/bin/env bash
# One run on a GPU: every level proved (in parallel), errors against float64, routing tables, benchmarks, random copies.
#
#   OUT=/some/folder OPGRAFT_COMMIT=<commit> bench/h200.sh [STAGE]...      stages: prove route bench (all if none is named)
#
# prove: the levels of every operator, and errors against float64. route: the routing tables, then random copies by them. bench: the cases
# that the project set itself targets for, own and routed beside native and, if it is installed, FlagGems.
# From a checkout without an installation; records land in $OUT/evidence and, in one file, in $OUT/all.tgz. Triton's cache is warm for
# the later stages after prove.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" OPGRAFT_COMMIT="${OPGRAFT_COMMIT:-$(git rev-parse --short=12 HEAD)}"
OUT="${OUT:?a folder for records}"
mkdir -p "$OUT/evidence" "$OUT/log"
opgraft() { python3 -W ignore -m opgraft.cli "$@"; }
prove() { opgraft verify "$@" --platform cuda --evidence "$OUT/evidence" >"$OUT/log/verify-$(tr ' ' '-' <<<"$*").txt" 2>&1; }

if [[ $# == 0 || " $* " == *" prove "* ]]; then
    for operator in sdpa embedding; do
        for level in kernel op framework; do prove "$operator" --level "$level" & done
    done
    for operator in copy_ clone type_as contiguous dropout; do prove "$operator" & done
    prove item detach detach_ empty empty_like empty_strided result_type _local_scalar_dense &
    (OUT="$OUT/evidence" python3 -W ignore bench/accuracy.py cuda >"$OUT/log/accuracy.txt" 2>&1) &
    wait
    tail -n 1 "$OUT"/log/accuracy.txt
    for log in "$OUT"/log/verify-*.txt; do
        grep -A3 FAILED "$log" | head -20
        echo "$(basename "$log" .txt): $(tail -n 1 "$log")"
    done
fi
if [[ $# == 0 || " $* " == *" route "* ]]; then
    opgraft bench --platform cuda --route --rounds 3 --evidence "$OUT/evidence" >"$OUT/log/route.txt" 2>&1
    tail -n 6 "$OUT/log/route.txt"
    mkdir -p "$OUT/routes"
    for table in opgraft/ops/*/routes.json; do cp "$table" "$OUT/routes/$(basename "$(dirname "$table")").json"; done
    OUT="$OUT/evidence" python3 -W ignore bench/random_copies.py cuda | tee "$OUT/log/random_copies.txt"
fi
if [[ $# == 0 || " $* " == *" bench "* ]]; then
    peer=(); python3 -c 'import flag_gems' 2>/dev/null && peer=(--peer flaggems)
    opgraft bench --platform cuda "${peer[@]}" --rounds 5 --match '^(?!copy_)|copy_, (bf16|bf16 to fp32) 2|copy_, broadcast \(64|256$' \
        --evidence "$OUT/evidence" >"$OUT/log/bench.txt" 2>&1
    tail -n 6 "$OUT/log/bench.txt"
fi
tar -C "$OUT" -czf "$OUT/all.tgz" evidence log $(cd "$OUT" && ls -d routes 2>/dev/null)
echo "records: $OUT/all.tgz"
