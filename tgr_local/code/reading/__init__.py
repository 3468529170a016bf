"""Parts of a project that the model reads, for a task and the output of failing tests.

outline.py   a file's classes and functions, with their lines
evidence.py  what a task and the output of tests say about files and functions
lacking.py   … which names tests use that the modules lack
context.py   chooses the files and functions that the model sees, by rank, within a budget of tokens
prompt.py    the messages for the model, and the code as an answer would repeat it
asking.py    what the model is asked: messages, the code to depart from, limits
"""
