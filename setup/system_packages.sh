#!/bin/sh
# Install the Debian packages named as arguments that are missing: as root, with sudo, or by printing what to run.
# The tests start these servers themselves, on loopback ports of their own.
set -eu
missing=""
for package in "$@"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "Missing Debian packages. Run as root: apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "Installing$missing"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
