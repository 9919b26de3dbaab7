"""The bug hunt of notebook 10, and the faults that were planted for it."""
