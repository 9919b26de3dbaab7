"""Sends a run to TensorBoard, Weights & Biases, MLflow or trackio: processes of their own, which read the run folder."""
