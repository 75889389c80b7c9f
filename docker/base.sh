#!/usr/bin/env bash
# Stand in for the Dockerfile's base image where no registry of images can be reached: a minimal
# Debian made by debootstrap, under the same tag. Needs root, debootstrap and buildah.
set -euo pipefail

image=$(sed -n 's/^ARG BASE=\([^@]*\).*/\1/p' "$(dirname "$0")/Dockerfile")
suite=${image#debian:}
suite=${suite%%-*}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root"
rm -rf "$root"/var/cache/apt/archives/*.deb
container=$(buildah from scratch)
buildah add --quiet "$container" "$root" /
buildah commit --quiet "$container" "localhost/$image"
buildah rm "$container"
