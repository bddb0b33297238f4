#!/usr/bin/env bash
# Runs once, as root, while Gradescope builds the image: installs the course into /autograder/source/.venv.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
cd "$root/source"

# Submissions run as an unprivileged user who must be able to read the interpreter, so nothing may lie in /root.
export UV_PYTHON_INSTALL_DIR="$root/python" UV_CACHE_DIR="${UV_CACHE_DIR:-$root/uv-cache}"
# PyTorch for CPUs where there is no GPU: a tenth of the download. Set but empty: whatever the package index has.
export UV_TORCH_BACKEND="${UV_TORCH_BACKEND-auto}"
[ -n "$UV_TORCH_BACKEND" ] || unset UV_TORCH_BACKEND

if ! python3 -m venv "$root/uv" 2>/dev/null; then
    apt-get install --yes --quiet --no-install-recommends python3-venv
    python3 -m venv "$root/uv"
fi
"$root/uv/bin/pip" install --quiet --disable-pip-version-check uv
"$root/uv/bin/uv" venv --quiet --python ">=3.11,<3.14" .venv
if [ -f install.sh ]; then
    sh install.sh "$root/uv/bin/uv" .venv/bin/python
else # a course without a checkout of its own
    "$root/uv/bin/uv" pip install --quiet --compile-bytecode --python .venv/bin/python --requirement requirements.txt
fi
rm -rf "$root/uv-cache"
chmod -R a+rX "$root/source"
if [ -d "$root/python" ]; then chmod -R a+rX "$root/python"; fi
if [ -f install.sh ]; then
    .venv/bin/python -c 'import grader.cli, torch, torchvision; print("installed; PyTorch", torch.__version__)'
else
    .venv/bin/python -c 'import gradebook.__main__, gradebox.__main__; print("installed")'
fi
