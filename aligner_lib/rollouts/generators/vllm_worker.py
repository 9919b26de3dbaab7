"""What a vLLM server adds to its workers, so that a trainer can give it weights: `vllm serve … --worker-extension-cls`.

It runs in vLLM's environment, which need not have Megatron.
"""

from __future__ import annotations

from aligner_lib.rollouts.generators.weight_stream import receive

STREAM_S = 600.0  # for the trainer to send the next block


class PolicyWeights:
    """Mixed into each of the server's workers, which has `reload_weights` and `parallel_config` of vLLM's."""

    def receive_policy(self, host: str, port: str, token: str) -> None:
        """Take the weights that a trainer sends from there, in place of those that the worker has."""
        receivers = self.parallel_config.world_size
        self.reload_weights(weights_iterator=receive(host, int(port), token, receivers, STREAM_S))
