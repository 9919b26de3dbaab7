"""The parts that trainers share: the loop, supervised training, the learning-rate schedule, statistics, timing. The trainers of
SFT, reward models, DPO, PPO and GRPO are in `aligner_lib.kinds`."""
