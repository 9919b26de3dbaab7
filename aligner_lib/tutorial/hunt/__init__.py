"""The bug hunt of notebook 10, and its planted faults."""
