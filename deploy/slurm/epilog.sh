#!/bin/sh
# Slurm epilog (Epilog=/etc/slurm/epilog.d/lockstep), as root on each node after a job: removes the job's rings and traces.
ROOT="${LOCKSTEP_ROOT:-/dev/shm/lockstep}"
case "$SLURM_JOB_ID" in
  "" | *[!0-9]*) exit 0 ;;
esac
rm -rf -- "$ROOT/job-$SLURM_JOB_ID" "$ROOT/job-$SLURM_JOB_ID"[.-]*
exit 0
