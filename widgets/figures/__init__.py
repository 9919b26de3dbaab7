"""Figures of finished runs: static figures, interactive figures, and a table of several runs."""
