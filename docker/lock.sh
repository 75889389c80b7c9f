#!/usr/bin/env bash
# Write requirements.txt: version and hashes of all that the image installs, PyTorch, torchvision,
# XGBoost and LightGBM included, but for what only simulations need. Versions of the present file
# stay unless `--upgrade` is an argument. Arguments go to `uv pip compile`:
#
#   docker/lock.sh                        PyPI's PyTorch, which runs on GPUs (CUDA) and CPUs
#   docker/lock.sh --torch-backend cpu    a smaller one for CPUs only; README.md says how to build with it
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(python3 - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
kept = [name for name in project["dependencies"] if not name.startswith("pandas")]
kept += [name for name in project["optional-dependencies"]["dev"] if name.startswith(("xgboost", "lightgbm"))]
print("\n".join(kept).replace("[simulation]", ""))
PYTHON
)
uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command docker/lock.sh --output-file docker/requirements.txt "$@" - <<< "$wanted"
