"""Generators of the policy's responses: Megatron in the trainer's process, or a vLLM server."""
