"""Aligner Lab's backing library. Importing it loads nothing heavy: torch and Megatron come with the modules that compute."""

__version__ = "0.1.0"
