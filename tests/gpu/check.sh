#!/usr/bin/env bash
# All checks that need a GPU, one JSON line each, in at most 8 minutes: tests/gpu/check.sh [CHECK...]
# From a plain checkout with python3 of a PyTorch CUDA image; nothing is installed, nothing fetched. What the image
# lacks (msgspec, say) skips the checks that need it; wheels laid into .whl/ are used from a temporary folder.
# Results also go to $OUT/gpu-checks.json where OUT is set. Exit status 1 when a check fails; 0 without a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 2
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
if compgen -G '.whl/*.whl' >/dev/null; then
    SITE=$(mktemp -d)
    trap 'rm -rf "$SITE"' EXIT
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$SITE" .whl/*.whl &&
        export PYTHONPATH="$SITE:$PYTHONPATH"
fi
"$PYTHON" tests/gpu/checks.py "$@"
