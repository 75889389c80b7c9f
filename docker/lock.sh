#!/usr/bin/env bash
# Write requirements.txt: version and hashes of all that the image installs, PyTorch and torchvision
# included, but for what only simulations need. Arguments go to `uv pip compile`:
#
#   docker/lock.sh                        PyPI's PyTorch, which runs on GPUs (CUDA) and CPUs
#   docker/lock.sh --torch-backend cpu    a smaller one for CPUs only; README.md says how to build with it
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(python3 - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
kept = [name for name in dependencies if not name.startswith("pandas")]
print("\n".join(kept).replace("[simulation]", ""))
PYTHON
)
uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command docker/lock.sh --output-file docker/requirements.txt "$@" - <<< "$wanted"
