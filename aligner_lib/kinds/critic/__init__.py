"""PPO's critic in a separate job."""
