"""Judges copies of the folder by the tests, and ranks the candidates.

judge.py         runs the tests in a copy, in the sandbox: a verdict
test_command.py  … which command runs them
test_output.py   … what their output says
test_counts.py   … the tests of one output
test_formats.py  … the forms of outputs, a table
test_python.py   … those of pytest and unittest
_check.py        … inside the sandbox, parses and imports files where there are no tests
losses.py        what an edit takes away that nobody asked for
comments.py      … the text of a file without comments and dead blocks
candidate.py     one answer: its edit and its verdict
ranking.py       which one is the best
"""
