#!/bin/sh
# Fetches LiteRT's wheel for aarch64, of the release that is installed, into the folder $2 with the Python $1.
# Never fails: the tests that run ARM code skip themselves without it.
set -u

python=$1 folder=$2
ls "$folder"/*.whl >/dev/null 2>&1 && exit 0
version=$("$python" -c 'from importlib.metadata import version; print(version("ai-edge-litert"))') &&
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
        --dest "$folder" "ai-edge-litert==$version" ||
    echo "LiteRT for aarch64 could not be fetched, tests that run ARM code are skipped" >&2
exit 0
