"""Reward-model training."""
