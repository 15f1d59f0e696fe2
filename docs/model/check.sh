#!/bin/sh
# Checks lease.pml with Spin, for `make model`: what is promised must hold, and what is known to be wrong must
# fail. Prints the table of README.md; the exit status is 1 if a row is not as expected. TRACE=1 prints the
# steps of each counterexample too.
set -u
model=$(cd "$(dirname "$0")" && pwd)/lease.pml || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work" || exit 1
status=0

check() { # holds|fails, property, what, definitions...
	want=$1 property=$2 what=$3 got='NO VERDICT'
	shift 3
	# Spin writes a counterexample beside the model, hence the copy.
	rm -f ./*
	if cp "$model" . && spin -a "$@" lease.pml >log 2>&1 &&
		gcc -O1 -w -DSAFETY -DNOFAIR -DMEMLIM=1500 -o pan pan.c >>log 2>&1 &&
		./pan -N "$property" -m100000 >>log 2>&1; then
		# A search that was cut short has no verdict.
		if grep -q 'assertion violated' log; then
			got=fails
		elif grep -q 'errors: 0' log && ! grep -Eq 'too small|out of memory|MEMLIM|not completed' log; then
			got=holds
		fi
	fi
	states=$(awk '/states, stored/ { print $1; exit }' log)
	mark=
	if [ "$got" != "$want" ]; then
		status=1 mark="  NOT AS EXPECTED: $want"
		cat log >&2
	fi
	printf '%-10s %-62s %-6s %9s states%s\n' "$property" "$what" "$got" "${states:-?}" "$mark"
	if [ -n "${TRACE:-}" ] && [ "$got" = fails ]; then
		./pan -r -N "$property"
	fi
}

check holds exclusive 'clock rates within the margin'
check fails exclusive 'without the margin' -DMARGIN=0
check fails exclusive 'clock rates beyond the margin' -DPERIOD=2
check fails exclusive 'counted from the answer' -DFROM_ANSWER
check fails exclusive 'no read after the acknowledgement' -DNO_READ
check fails exclusive 'the acknowledgement of an older attempt is taken' -DOLD_ANSWERS
check fails exclusive 'the delete is sent before the validity ends' -DDELETE_FIRST
check fails barren 'nobody ever leads a second term'
check holds fenced 'no clocks, leases and keys go at any time' -DTIMELESS -DTERMS=3 -DLEASES=3
check fails fenced 'a guarded write does not compare' -DTIMELESS -DNO_COMPARE
check fails fenced 'the gate does not remember' -DTIMELESS -DNO_MEMORY
check fails barren 'nobody ever leads a second term' -DTIMELESS
check fails exclusive 'no clocks' -DTIMELESS
exit $status
