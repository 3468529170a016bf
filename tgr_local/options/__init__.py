"""Every option: its meaning, default and bounds, and where its value comes from."""
