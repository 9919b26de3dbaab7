"""Send a run to TensorBoard, Weights & Biases, MLflow or trackio, by processes of their own that read the run folder."""
