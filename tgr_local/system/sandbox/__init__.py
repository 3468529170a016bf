"""Untrusted programs with limits of time, memory, processes and files, without a network.

programs.py  a Python program of a model: source text in, its output and how it ended out
commands.py  a command of the user, in a folder that it may write
backends.py  how it is isolated: bwrap, unshare, limits; or none
usage.py     memory and disk space of a process and its descendants
_launch.py   inside the sandbox: sets the limits
"""
