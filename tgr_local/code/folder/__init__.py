"""The person's folder: read, copied, changed. Nothing here knows models or tests.

project.py     its files: their texts, and which files must not be changed
repository.py  … its git repository, without reading the repository's settings
listing.py     … which files: git's own list, or a walk that knows .gitignore
byte_style.py  … bytes ↔ text: encodings, line ends
snapshot.py    a copy of it at one moment, uncommitted work included
copies.py      copies of the snapshot, each with the changes of a candidate
journal.py     accept and undo: all changes or none; exchange.py: one file
"""
