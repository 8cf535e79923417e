#!/bin/sh
# Builds wheel and sdist with the Python $1, installs the wheel into an empty environment and takes the
# quickstart there, from a folder outside of the repo. Takes some minutes, and a few GB in $TMPDIR until it ends.
set -eu

python=$1
repo=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install --quiet --disable-pip-version-check build
"$scratch/build/bin/python" -m build --outdir "$scratch/dist" "$repo"

# what the sdist holds must be enough to build the same wheel
"$scratch/build/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch/again" "$scratch"/dist/*.tar.gz
"$scratch/build/bin/python" - "$scratch"/dist/*.whl "$scratch"/again/*.whl <<'PYTHON'
import sys
import zipfile

first, second = ({one.filename: one.CRC for one in zipfile.ZipFile(file).infolist()} for file in sys.argv[1:])
differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
sys.exit(f"the sdist builds another wheel: {differing[:5]}" if differing else None)
PYTHON

"$python" -m venv "$scratch/empty"
"$scratch/empty/bin/pip" install --quiet --disable-pip-version-check "$scratch"/dist/*.whl
"$scratch/empty/bin/pip" check
mkdir "$scratch/folder"
cd "$scratch/folder"
"$scratch/empty/bin/edgecompress" quickstart
ls -l "$scratch"/dist
