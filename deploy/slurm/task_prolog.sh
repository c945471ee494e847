#!/bin/sh
# Slurm task prolog (TaskProlog=/etc/slurm/lockstep_task_prolog), as the user before each task: what it prints as `export` is
# set for the task. With it every job of the cluster is monitored without a change of its script. A variable that the job sets wins.
ROOT="${LOCKSTEP_ROOT:-/dev/shm/lockstep}"
SITE="${LOCKSTEP_SITE:-/opt/lockstep/agent/lockstep/agent/site}"
[ -n "$LOCKSTEP_RUN" ] || echo "export LOCKSTEP_RUN=job-$SLURM_JOB_ID"
[ -n "$LOCKSTEP_DIR" ] || echo "export LOCKSTEP_DIR=$ROOT"
# The user whose orders to capture count, in addition to root.
[ -n "$LOCKSTEP_EXPORTER_UID" ] || id -u "${LOCKSTEP_USER:-lockstep}" 2>/dev/null | sed "s/^/export LOCKSTEP_EXPORTER_UID=/"
echo "export PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH}"
