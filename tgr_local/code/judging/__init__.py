"""Judges copies of the folder by the tests, and ranks the candidates.

judge.py         runs the tests in a copy, in the sandbox, and makes a verdict
test_command.py  … finds a command that runs the tests
test_output.py   … reads their output
test_counts.py   … records: the counts and the failures in an output
test_formats.py  … output formats of test programs, a table
test_streams.py  … output formats that are no table, and errors of compilers
test_python.py   … output formats of pytest and unittest
test_plain.py    … outputs of tests without a framework: PASS and FAIL lines, asserts
_check.py        … inside the sandbox, parses and imports files where there are no tests
losses.py        finds edits that delete code without being asked to
comments.py      … the text of a file without comments and dead blocks
candidate.py     one answer: its edit and its verdict
ranking.py       which one is the best
"""
