#!/bin/sh
# Make the virtual environment named by the first argument, with Python 3.11 or newer.
set -eu
directory=$1
for python in python3.11 python3 python3.12 python3.13; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian ships these two modules in a package of their own.
        sh "$(dirname "$0")/system_packages.sh" "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    fi
    "$python" -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --upgrade pip
    exit 0
done
echo "Lockstep needs Python 3.11 or newer. On Debian 12: apt-get install python3 python3-venv" >&2
exit 1
