"""Generators of the policy's responses: Megatron in this process, or a vLLM server."""
