#!/bin/sh
# Slurm prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/lockstep), as root on each node before a job: makes where rings lie.
# Never fails a job: whatever goes wrong here costs the monitoring, not the training. What a user has made in its place is refused.
ROOT="${LOCKSTEP_ROOT:-/dev/shm/lockstep}"
OWNER="${LOCKSTEP_USER:-lockstep}"
GROUP="${LOCKSTEP_GROUP:-lockstep}"
prepare() {
  mkdir -p "$ROOT" && [ "$(stat -c %u:%F "$ROOT")" = "$(id -u):directory" ] && chgrp "$GROUP" "$ROOT" || return
  [ -e "$ROOT/.exporter" ] || install -d -m 0755 -o "$OWNER" -g "$GROUP" "$ROOT/.exporter" || return
  chmod 3770 "$ROOT"
}
prepare || echo "lockstep: $ROOT is not ready" >&2
exit 0
