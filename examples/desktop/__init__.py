"""A desktop program in PySide6; README.md lists its files."""
