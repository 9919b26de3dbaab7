"""Recorded runs with the planted mistakes of the exercises that train."""
