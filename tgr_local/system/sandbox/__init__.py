"""Untrusted programs with limits of time, memory, processes and files, without a network.

commands.py  a command of the user, in a folder that it may write
backends.py  how it is isolated: bwrap, unshare, limits; or none
fetched.py   … packages that tools have fetched for the user
own_path.py  the folder's path in a command, where a copy stands for it
usage.py     measures memory and disk space of a process and its descendants against their limits;
             ends them, removes what they leave
_launch.py   inside the sandbox: sets the limits that the system keeps for each process
"""
