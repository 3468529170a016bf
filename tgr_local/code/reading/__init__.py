"""Parts of a project that the model reads, for a task and the output of failing tests.

outline.py   a file's classes and functions, with their lines
evidence.py  finds the files and functions that a task and the output of tests point to
reach.py     … finds the functions that failing tests reach
lacking.py   … finds the names that tests use and the modules lack
context.py   chooses the files and functions that the model sees, by rank, within a budget of tokens
prompt.py    the messages for the model; the code as an answer would repeat it
asking.py    the request to the model: messages, the code to depart from, limits
"""
