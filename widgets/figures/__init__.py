"""Figures of finished runs: static ones, interactive ones, and a table of several runs."""
