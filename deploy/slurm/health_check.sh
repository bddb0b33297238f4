#!/bin/bash
# Slurm's HealthCheckProgram: a light look at the node beside whatever runs there; drains it, with the reason, if it fails.
#
#     # slurm.conf
#     HealthCheckProgram=/opt/gpu-labs/deploy/slurm/health_check.sh
#     HealthCheckInterval=300
#     HealthCheckNodeState=ANY
#
# Runs as root, with nothing of root's environment and for 60 seconds at most. What it says goes to the system's log. What
# is site's own stands in /etc/gpu-labs.conf (or $GPU_LABS_CONF): OPTIONS=(--expect-gpus 8 --expect /etc/cluster.toml)
set -uo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
export PATH=$here/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
OPTIONS=()
conf=${GPU_LABS_CONF:-/etc/gpu-labs.conf}
# shellcheck source=/dev/null
[ -r "$conf" ] && source "$conf"

cd "$here" || exit 2
said=$(timeout 50 python3 -m cluster.fleet node --slurm "${OPTIONS[@]}" "$@" 2>&1)
code=$?
command -v logger >/dev/null && logger --tag gpu-labs -- "$said"
printf '%s\n' "$said"
# Slurm drains nothing by itself for what this program returns. What could not be told is no reason to take a node away.
exit "$code"
