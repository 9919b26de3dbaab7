"""Sends a run to TensorBoard, Weights & Biases, MLflow or trackio. Separate processes read the run folder."""
