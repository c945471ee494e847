#!/bin/sh
# Run a command as on a machine that booted 60 s ago: its CLOCK_MONOTONIC and CLOCK_BOOTTIME begin at 60 s, in a Linux
# time namespace. Where the kernel refuses one (it is older than 5.6, or this is neither root nor has CAP_SYS_ADMIN),
# the command does not run, and the exit status is 77.
# usage: just_booted.sh COMMAND [ARGUMENT ...]
set -eu
[ $# -gt 0 ] || { echo "usage: $0 COMMAND [ARGUMENT ...]" >&2; exit 2; }
uptime_s=$(cut -d. -f1 /proc/uptime)
[ "$uptime_s" -gt 60 ] || exec "$@"
# Offsets count from the machine's own clock, also where this already runs in a time namespace.
begin_s=$(awk '$1 == "monotonic" { print $2 }' /proc/self/timens_offsets 2>/dev/null || echo 0)
offset_s=$((begin_s + 60 - uptime_s))
if ! refusal=$(unshare --time --fork --monotonic "$offset_s" --boottime "$offset_s" true 2>&1); then
    echo "$0: no time namespace ($refusal), so this did not run: $*" >&2
    exit 77
fi
exec unshare --time --fork --monotonic "$offset_s" --boottime "$offset_s" "$@"
