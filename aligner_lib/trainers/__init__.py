"""SFT, reward model and PPO: each reads like its algorithm, and `loop` runs any of them."""
