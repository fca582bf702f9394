#!/usr/bin/env bash
# One run on a GPU: every level proved (in parallel), errors against float64, routing tables, benchmarks, random copies.
#
#   OUT=/some/folder OPGRAFT_COMMIT=<commit> script/h200.sh [STAGE]...      stages: prove route bench (all if none is named)
#
# prove: the levels of every operator, and errors against float64. route: the routing tables, then random copies by them. bench: the cases
# that the project set itself targets for, own and routed beside native and, if it is installed, FlagGems.
# From a checkout without an installation; records land in $OUT/evidence and, in one file, in $OUT/all.tgz. Triton's cache is warm for
# the later stages after prove.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OPGRAFT_COMMIT="${OPGRAFT_COMMIT:-$(git rev-parse --short=12 HEAD)}"
OUT="${OUT:?a folder for records}"
PEER_CASES='clone, bf16 (256|2.2[47])|copy_, bf16 to fp32 (256|2.27)|type_as.*2.27|dropout, bf16 2.27|transposed 8192|BHSD|sdpa, prefill causal d128 bf16 2048|broadcast \(64|embedding, 8192 ids × 4096 bf16'
mkdir -p "$OUT/evidence" "$OUT/log"
opgraft() { python3 -W ignore -m opgraft.cli "$@"; }
prove() { opgraft verify "$@" --platform cuda --evidence "$OUT/evidence" >"$OUT/log/verify-$(tr ' ' '-' <<<"$*").txt" 2>&1; }

if [[ $# == 0 || " $* " == *" prove "* ]]; then
    for operator in sdpa embedding; do
        for level in kernel op framework; do prove "$operator" --level "$level" & done
    done
    for operator in copy_ clone type_as contiguous dropout; do prove "$operator" & done
    prove item detach detach_ empty empty_like empty_strided result_type _local_scalar_dense &
    (OUT="$OUT/evidence" python3 -W ignore -m opgraft.bench.accuracy cuda >"$OUT/log/accuracy.txt" 2>&1) &
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
    OUT="$OUT/evidence" python3 -W ignore -m opgraft.bench.random_copies cuda | tee "$OUT/log/random_copies.txt"
fi
if [[ $# == 0 || " $* " == *" bench "* ]]; then
    opgraft bench --platform cuda --rounds 3 --match '^(?!copy_)|copy_, (bf16|bf16 to fp32) 2|copy_, broadcast \(64|256$' \
        --evidence "$OUT/evidence" >"$OUT/log/bench.txt" 2>&1
    tail -n 3 "$OUT/log/bench.txt"
    if python3 -c 'import flag_gems' 2>/dev/null; then # it tunes its kernels first, so a few cases only
        opgraft bench --platform cuda --peer flaggems --rounds 5 --evidence "$OUT/peer" --match "$PEER_CASES" >"$OUT/log/peer.txt" 2>&1
        cp "$OUT/peer/cuda/bench.json" "$OUT/evidence/cuda/bench-flaggems.json"
        tail -n 3 "$OUT/log/peer.txt"
    fi
fi
tar -C "$OUT" -czf "$OUT/all.tgz" evidence log $(cd "$OUT" && ls -d routes 2>/dev/null)
echo "records: $OUT/all.tgz"
