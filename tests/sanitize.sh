#!/usr/bin/env bash
# Runs the engine's tests with the engine built under sanitizers: sanitize.sh address,undefined | thread
# It goes into a venv and a build folder of its own under build/, which stay for the next time. What the sanitizers
# report, in a test's child process too, is printed at the end.
set -euo pipefail
kind=$1
cd "$(dirname "$0")/.."
case $kind in
    address,undefined) runtime=libasan.so ;;
    thread) runtime=libtsan.so ;;
    *) echo "the sanitizers must be address,undefined or thread, not $kind" >&2; exit 2 ;;
esac
venv=build/sanitize-${kind%%,*} # without a comma, which ends an option of the sanitizers

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
version=$(sed -n 's/^set(LLAMA_CPP_PYTHON_VERSION \(.*\))$/\1/p' CMakeLists.txt)
CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" "$venv/bin/pip" install -q --no-cache-dir "llama-cpp-python==$version"
# what the tests compare with, and ggml, are not instrumented: only what our code does counts
"$venv/bin/pip" install -q -C "cmake.define.TGR_SANITIZE=$kind" -C "cmake.define.TGR_PEER=ON" \
    -C "build-dir=build/cmake-$kind" ".[dev]"

reports=$PWD/$venv/report
rm -f "$reports".*
export ASAN_OPTIONS=detect_leaks=0:log_path=$reports
export UBSAN_OPTIONS=print_stacktrace=1:log_path=$reports
# of Python's lock ThreadSanitizer sees nothing, so it takes the end of the process, where the tables of llama.cpp are
# destroyed, for a race with the threads that read them before; nor does it see how the loader gets the variables of a
# thread back that has ended, and how the C++ library counts the threads that hold an exception
printf "race:%s\n" cxa_at_exit_wrapper _dl_deallocate_tls std::__exception_ptr::exception_ptr::_M_release \
    > "$venv/suppressions"
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 report_signal_unsafe=0 halt_on_error=0 exitcode=66 \
die_after_fork=0 print_suppressions=0 suppressions=$PWD/$venv/suppressions log_path=$reports"
export OMP_NUM_THREADS=1
# left out: tests whose processes have a clean environment, so no runtime of the sanitizer, or less address space than it
# needs, or more calls within each other than it follows, or a fork whose threads it takes for those of the parent
status=0
LD_PRELOAD="$(gcc -print-file-name=$runtime) $(gcc -print-file-name=libstdc++.so.6)" \
    TGR_TEST_HANG=300 "$venv/bin/pytest" -q -p no:cacheprovider --timeout 900 -o faulthandler_timeout=0 \
    tests/test_engine*.py tests/test_{prefixes,fairness,grammars,edits,edit_grammar,native}.py \
    tests/test_{session_attention,attention_views,families,cancel,trajectory,drafts}.py \
    --deselect tests/test_engine.py::test_the_chat_template_opens_the_reply \
    --deselect tests/test_engine.py::test_words_of_any_length_are_tokenized \
    --deselect tests/test_engine_loading.py::test_weights_that_do_not_fit_into_memory \
    --deselect tests/test_engine_loading.py::test_control_c_ends_a_command_that_loads \
    --deselect tests/test_engine_memory.py::test_a_reserve_of_a_limited_address_space_stays \
    --deselect tests/test_engine_exit.py::test_a_forked_child_must_load_again || status=$?
for report in "$reports".*; do
    [ -e "$report" ] || continue
    cat "$report"
    status=1
done
exit $status
