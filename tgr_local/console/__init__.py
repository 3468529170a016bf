"""Terminal input and output.

In: lines from a terminal or a pipe; replies and their events. Out: text without control characters,
replies that grow on the screen, tables. It reads events only: nothing here runs or changes a
method, and it knows neither HTTP nor conversations.

live.py           a reply on stdout while it grows
pace.py           how far a reply is, and how fast; the progress line of unseen replies
render.py         records and replies as lines of text: tables, summaries, score bars
region.py         rows at the bottom of the screen, below text that is printed once
growing.py        text that grows: the pieces that are finished, and the rest
markdown.py       Markdown as rich's renderables
wrap.py           long lines broken between words, or cut
input_line.py     the line that a person types into: completion, history, keys
pastes.py         pasted text in that line
text_input.py     lines of stdin; blocks of several lines
command_table.py  slash commands in a table, for any session
endings.py        signals that end or stop the program; the terminal as it was before
windows.py        consoles and pipes of Windows
dialog.py         lines answered one by one until the end; keys between them; messages on stderr
"""
