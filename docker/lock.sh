#!/usr/bin/env bash
# Write requirements.txt: the versions in the image, of all that pyproject.toml needs but PyTorch
# itself, which build arguments choose, and what only simulations need. uv must find the PyTorch of
# the Dockerfile: UV_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu docker/lock.sh
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(python3 - <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
kept = [name for name in dependencies if not name.startswith(("torch>", "torchvision"))]
print("\n".join(kept).replace("[simulation]", ""))
PYTHON
)
torch=$(sed -n 's/^ARG TORCH=/torch==/p' docker/Dockerfile)
printf '%s\n' "$wanted" "$torch" | uv pip compile --quiet --python-version 3.11 \
    --generate-hashes --no-annotate --no-emit-package torch \
    --custom-compile-command docker/lock.sh --output-file docker/requirements.txt -
