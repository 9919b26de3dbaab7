"""Formatted data files as token ids, and token ids as batches."""
