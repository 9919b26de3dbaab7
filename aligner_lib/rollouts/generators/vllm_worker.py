"""The extension of a vLLM server's workers that receives a trainer's weights: `vllm serve … --worker-extension-cls`.

The module runs in vLLM's environment, which may lack Megatron.
"""

from __future__ import annotations

from aligner_lib.rollouts.generators.weight_stream import receive

STREAM_S = 600.0  # seconds for the trainer to send the next block


class PolicyWeights:
    """Mixed into each worker of the server, which provides vLLM's `reload_weights` and `parallel_config`."""

    def receive_policy(self, host: str, port: str, token: str) -> None:
        """Replace the worker's weights by the weights from a trainer at host:port."""
        receivers = self.parallel_config.world_size
        self.reload_weights(weights_iterator=receive(host, int(port), token, receivers, STREAM_S))
