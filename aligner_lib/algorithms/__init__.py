"""The mathematics: pure functions on tensors, independent of trainers, Megatron and files."""
