"""Trainers for SFT, reward models and PPO. Each reads like its algorithm, and `loop` runs all of them."""
