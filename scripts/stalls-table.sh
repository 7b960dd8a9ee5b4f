#!/bin/sh
# The longest write of a volume for each process that can fail and each way in which it does, beside what
# is wanted: all rows of one table, by scripts/stalls.sh.
#
#   scripts/stalls-table.sh [RUNS [CRATON [CSV]]]
#
# RUNS (3) is how often each row is run; rows take turns, so that a busy minute of the machine meets all.
# CRATON (target/shipped/craton) is the program, CSV (stalls.csv) the file for each run. The table says the
# worst of each row. Exit 1: a row misses what is wanted, or has no result. Needs fio with its nbd engine,
# python3, and root for the rows "grey". A run takes about 40 s, all rows of it about 13 minutes.
#
# CRATON_STALLS_ROWS is a pattern (grep -E) of the rows to run, such as 'block server alone'.
set -eu
runs=${1:-3}
craton=${2:-target/shipped/craton}
csv=${3:-stalls.csv}
here=$(dirname "$0")
for tool in fio python3; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed: install it" >&2; exit 2; }
done
fio --enghelp 2>/dev/null | grep -qw nbd || { echo "this fio has no engine nbd: build it with libnbd" >&2; exit 2; }
[ -x "$craton" ] || { echo "$craton is not there: build it with 'cargo xtask shipped'" >&2; exit 2; }

# Row; what is measured; fault; process; ms wanted.
rows() {
    for fault in kill stop grey; do
        echo "chunkserver;writes;$fault;cs2;100"
        echo "block server alone;writes;$fault;bs1;100"
        echo "block server shared;shared;$fault;bs1;700"
        echo "leading block manager, open segments;writes;$fault;manager;100"
        echo "leading block manager, new attachments;attach;$fault;manager;900"
        echo "leading block manager, moves;move;$fault;manager;900"
    done
    for fault in stop grey; do
        echo "leading master;writes;$fault;leader;500"
    done
    echo "no fault;writes;none;cs2;"
}

echo "run,row,fault,longest_ms,wanted_ms" >"$csv"
run=1
while [ "$run" -le "$runs" ]; do
    rows | grep -E "${CRATON_STALLS_ROWS:-.}" | while IFS=';' read -r row what fault process wanted; do
        if [ "$fault" = grey ] && [ "$(id -u)" -ne 0 ]; then
            echo "skipped, it needs root: $row, grey" >&2
            continue
        fi
        line=$(CRATON_STALLS_WHAT=$what "$here/stalls.sh" rep3 "$fault" "$process" "$craton" || true)
        longest=$(echo "$line" | sed -n 's/.*the longest \([0-9.]*\) ms.*/\1/p')
        echo "run $run, $row: ${line:-no result}" >&2
        echo "$run,\"$row\",$fault,$longest,$wanted" >>"$csv"
    done
    run=$((run + 1))
done
python3 - "$csv" <<'END'
import csv, sys
rows, missed = {}, False
for line in csv.DictReader(open(sys.argv[1])):
    rows.setdefault((line["row"], line["fault"]), []).append(line)
print(f"{'process':<40} {'fault':<6} {'runs':>4} {'worst':>9} {'wanted':>9}")
for (row, fault), lines in rows.items():
    results = [float(line["longest_ms"]) for line in lines if line["longest_ms"]]
    wanted = float(lines[0]["wanted_ms"] or "inf")
    misses = len(results) < len(lines) or max(results) > wanted
    missed |= misses
    worst = f"{max(results):.1f} ms" if results else "none"
    aim = "-" if wanted == float("inf") else f"{wanted:.0f} ms"
    word = "  MISSED" if misses else ""
    print(f"{row:<40} {fault:<6} {len(results):>4} {worst:>9} {aim:>9}{word}")
sys.exit(missed)
END
