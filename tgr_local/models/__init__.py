"""Model files on this machine: what a file is, where it lies, how one is fetched."""
