#!/bin/sh
# Slurm prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/lockstep), as root on each node before a job: makes where rings lie.
# Never fails a job: whatever goes wrong here costs the monitoring, not the training.
ROOT="${LOCKSTEP_ROOT:-/dev/shm/lockstep}"
GROUP="${LOCKSTEP_GROUP:-lockstep}"
mkdir -p "$ROOT" && chgrp "$GROUP" "$ROOT" && chmod 3770 "$ROOT" || echo "lockstep: $ROOT is not ready" >&2
exit 0
