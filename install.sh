#!/bin/sh
# Installs the course, editable, into an environment that is there:   sh install.sh UV PYTHON [EXTRA,EXTRA...]
#
# Everything at the version that was tested (constraints.txt): a release in week five of a course must not change it.
# NEWEST=1 takes the newest that pyproject.toml allows. Where a platform has no wheel of a tested version, the ranges of
# pyproject.toml hold, and a line says so. All is compiled, once, because a submission's processes can write nothing:
# each of them that imports what nobody has imported before would compile it again.
set -eu
uv=$1 python=$2 what=.${3:+[$3]}
cd "$(dirname "$0")"

install() { "$uv" pip install --quiet --compile-bytecode --python "$python" "$@" --editable "$what"; }

if [ -n "${NEWEST:-}" ]; then
    install --upgrade
elif ! install --constraints constraints.txt --build-constraints constraints.txt 2>/dev/null; then
    install
    echo "note: this platform cannot have every version of constraints.txt: installed what pyproject.toml allows" >&2
fi
