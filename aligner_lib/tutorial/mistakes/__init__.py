"""Recorded training runs with the exercises' planted mistakes."""
