"""The mathematics: pure functions on tensors, which know no trainer, no Megatron and no files."""
