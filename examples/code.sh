#!/usr/bin/env bash
# Repairs a copy of examples/code: three functions with a defect each, three tests that fail.
# MODEL=FILE uses another model than the embedded one, SANDBOX=NAME another sandbox than the strongest
# one that works here: none runs the tests with your rights, on your files and network. Without a terminal the edit is accepted by
# itself; with one you are asked. The exit code is 0 only when the tests of the copy pass.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
copy=$(mktemp -d "${TMPDIR:-/tmp}/tgr-local-code.XXXXXX")
cp examples/code/*.py "$copy"
cd "$copy"
echo "the example is in $copy" >&2
# plugins of pytest that happen to be installed may take seconds to load, in every run
test=(env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "$bin/python" -B -m pytest -q -x -p no:cacheprovider)
accept=(--yes)
if [ -t 0 ] && [ -t 1 ]; then accept=(); fi
status=0
"$bin/tgr-local" code "Make the failing tests pass." --test "${test[*]}" --rounds 9 -k 16 \
    ${MODEL:+--model "$MODEL"} ${SANDBOX:+--sandbox "$SANDBOX"} ${accept[@]+"${accept[@]}"} || status=$?
case $status in 0 | 3 | 4) ;; *) exit "$status" ;; esac  # no edit was looked for
"${test[@]}" >&2 || exit 1
exit "$status"
