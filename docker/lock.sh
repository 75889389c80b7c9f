#!/usr/bin/env bash
# Write requirements.txt: version and hashes of all that the image installs, PyTorch included, but
# for what only simulations need. uv must find that PyTorch:
#
#   UV_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu docker/lock.sh
#
# CUDA:         TORCH=2.13.0+cu130 with https://download.pytorch.org/whl/cu130, here and as
#               --build-arg TORCH_INDEX of the image
# torchvision:  TORCHVISION=0.28.0+cpu, for the models that need it
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(python3 - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
kept = [name for name in dependencies if not name.startswith(("torch>", "torchvision", "pandas"))]
print("\n".join(kept).replace("[simulation]", ""))
PYTHON
)
printf '%s\n' "$wanted" "torch==${TORCH:-2.13.0+cpu}" ${TORCHVISION:+"torchvision==$TORCHVISION"} |
    uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command docker/lock.sh --output-file docker/requirements.txt -
