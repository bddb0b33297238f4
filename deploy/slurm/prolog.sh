#!/bin/bash
# Slurm's Prolog: the same light look, before a job begins on the node. What fails it drains the node, and Slurm queues the
# job again; what could not be told (3), or not be run (2), holds no job up.
#
#     # slurm.conf
#     Prolog=/opt/gpu-labs/deploy/slurm/prolog.sh
#     PrologFlags=Alloc
set -uo pipefail

"$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/health_check.sh" "$@"
[ $? -ne 1 ]
