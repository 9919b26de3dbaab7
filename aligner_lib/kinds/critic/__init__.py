"""PPO's critic in a job of its own."""
