#!/bin/sh
# Public training scripts as they are, parked and moved: tests/public/run.sh DIR [WORDS…]; the table goes to stdout
# and to build/public/table.md, what was said of each to build/public/NN.told. DIR/OWNER/NAME are clones of the
# repositories of tests/public/scripts.py. Needs `make setup`, and a package index for what only these scripts need.
# 30 minutes on two cores; not part of make test.
set -eu
cd "$(dirname "$0")/../.."
. tests/public/venv.sh
make_venv
exec build/public/venv/bin/python -m tests.public.run "$@"
