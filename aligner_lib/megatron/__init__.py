"""Everything that imports megatron.core: the CPU layer, parallel groups, models, generation, training, checkpoints."""
