"""A generation engine: a model of `transformers` writes the responses, token by token.

It samples from the full distribution and keeps no cache, which makes it short and slow.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from aligner_lib.megatron.generate import Response
from aligner_lib.models.families import to_hf


class TransformersGenerator:
    """A `Generator` (aligner_lib/rollouts/interfaces.py) with weights of its own."""

    def __init__(self, architecture, stop_ids):
        self.model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**to_hf(architecture))).eval()
        self.stop_ids = stop_ids

    def refresh(self, weights):
        self.model.load_state_dict(dict(weights), strict=False)  # tied embeddings have one name of two

    def batch(self, rows):
        return Batch(self.model, self.stop_ids)


class Batch:
    """A `GenerationBatch` that writes a response after the other."""

    def __init__(self, model, stop_ids):
        self.model, self.stop_ids, self.waiting = model, stop_ids, []

    def add(self, prompt, seed, sampling):
        response = Response()
        self.waiting.append((list(prompt), torch.Generator().manual_seed(seed), sampling, response))
        return response

    def run(self, enough=lambda: False):
        while self.waiting and not enough():
            self._write(*self.waiting.pop(0))

    @torch.no_grad()
    def _write(self, tokens, random, sampling, response):
        while not response.is_over:
            logits = self.model(torch.tensor([tokens])).logits[0, -1]
            logprobs = (logits / sampling.temperature).log_softmax(-1)
            token = int(torch.multinomial(logprobs.exp(), 1, generator=random))
            tokens.append(token)
            response.tokens.append(token)
            response.logprobs.append(float(logprobs[token]))
            response.finished = token in self.stop_ids
            response.is_over = response.finished or len(response.tokens) == sampling.max_length


def trainer(trainer):
    """PPO's hook `functions.trainer`: the policy of the trainer gets this engine."""
    policy = trainer.policy
    policy.generator = TransformersGenerator(policy.engine.module.architecture, policy.tokenizer.stop_ids)
    return trainer
