"""Generated programming problems: a small Python file with a defect, tests that fail, the repair.

```
slots.py     random names and values
family.py    a family of functions: texts with slots
lists.toml, numbers.toml, strings.toml, tables.toml, classes.toml    the families
defects.py   small changes of a correct text, by kind
checks.py    tests of a function, and what a version of it gives for them
output.py    what pytest, unittest and a bare assert print
problem.py   whole problems, and which of them are for training and which for tests
```
"""
