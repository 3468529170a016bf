"""The operating system: folders of the user, free memory, a subprocess with limits."""
