"""Aligner Lab's side of GRPO: a policy whose generated responses are replaced by given responses, and a program as the
judge."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from aligner_lib.megatron.generate import ContinuousBatch, Response, Sampling
from aligner_lib.rollouts.policy import Policy, to_rollouts
from aligner_lib.rollouts.records import Rollouts
from benchmarks.contest import Rounds
from benchmarks.setting import reward


class GivenResponses(Policy):
    """A policy that learns from given responses, see Setting.learnt_responses. Counts the tokens that the policy reads and
    draws.

    Generation also computes the log-probabilities of the drawn tokens, at no cost. The log-probabilities of the given responses
    need an additional forward pass, which is not timed.
    """

    def __init__(self, *args, responses: list[list[int]], rounds: Rounds, **kwargs):
        super().__init__(*args, **kwargs)
        self.responses, self.rounds = responses, rounds
        self.read = self.drawn = self._position = 0

    def batch(self, rows: int) -> Exchanged:
        return Exchanged(super().batch(rows), self)

    def exchange(self, prompts: list[list[int]], drawn: list[Response]) -> None:
        """Replace the tokens of drawn responses by the tokens of the next given responses."""
        begin, self._position = self._position, (self._position + len(drawn)) % len(self.responses)
        learnt = self.responses[begin : begin + len(drawn)]
        lengths = [len(response.tokens) for response in drawn]
        assert lengths == list(map(len, learnt)), "a response has not the length it was forced to"
        self.read += sum(map(len, prompts))
        self.drawn += sum(lengths)
        for response, tokens in zip(drawn, learnt):
            response.tokens = tokens
        with self.rounds.untimed():
            rollouts = to_rollouts(prompts, drawn, [0] * len(drawn), self.tokenizer.pad_id)
            for response, row, mask in zip(drawn, self.logprobs(rollouts)[0], rollouts.response_mask):
                response.logprobs = row[mask].tolist()


class Exchanged:
    """A batch whose responses are replaced by given responses as soon as all are drawn."""

    def __init__(self, batch: ContinuousBatch, policy: GivenResponses):
        self._batch, self._policy = batch, policy
        self._requests: list[tuple[list[int], Response]] = []

    def add(self, prompt: list[int], seed: int, sampling: Sampling) -> Response:
        response = self._batch.add(prompt, seed, sampling)
        self._requests.append((list(prompt), response))
        return response

    def run(self, enough: Callable[[], bool]) -> None:
        self._batch.run()
        prompts, responses = zip(*self._requests)
        self._policy.exchange(list(prompts), list(responses))


class GivenRewards:
    """A RewardSource with `reward` as the judge."""

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        responses = [row[1:][mask].tolist() for row, mask in zip(rollouts.tokens, rollouts.response_mask)]
        scored: Future[Tensor] = Future()
        scored.set_result(torch.tensor([reward(response) for response in responses]))
        return scored

    def collect(self, requests: list[Future[Tensor]]) -> list[Tensor]:
        return [scored.result() for scored in requests]
