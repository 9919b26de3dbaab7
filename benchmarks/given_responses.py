"""Our side of GRPO: a policy that generates, and whose responses are then others; and a program that judges them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import torch
from torch import Tensor

from aligner_lib.megatron.generate import Response
from aligner_lib.rollouts.policy import Policy, to_rollouts
from aligner_lib.rollouts.records import Rollouts
from benchmarks.contest import Rounds
from benchmarks.setting import reward


class GivenResponses(Policy):
    """See Setting.learnt_responses. It counts the tokens that it reads and draws.

    Generation has the log-probabilities of what it draws for nothing. Those of the given responses take a pass in their
    place, which is not timed.
    """

    def __init__(self, *args, responses: list[list[int]], rounds: Rounds, **kwargs):
        super().__init__(*args, **kwargs)
        self.responses, self.rounds = responses, rounds
        self.read = self.drawn = self._position = 0

    def respond(self, prompts: list[list[int]], seeds: list[int], greedy: bool = False) -> list[Response]:
        drawn = super().respond(prompts, seeds, greedy)
        begin, self._position = self._position, (self._position + len(drawn)) % len(self.responses)
        learnt = self.responses[begin : begin + len(drawn)]
        lengths = [len(response.tokens) for response in drawn]
        assert lengths == list(map(len, learnt)), "a response has not the length it was forced to"
        self.read += sum(map(len, prompts))
        self.drawn += sum(lengths)
        given = [replace(response, tokens=tokens) for response, tokens in zip(drawn, learnt)]
        with self.rounds.untimed():
            rollouts = to_rollouts(prompts, given, [0] * len(given), self.tokenizer.pad_id)
            rows = zip(self.logprobs(rollouts)[0], rollouts.response_mask)
            return [replace(one, logprobs=row[mask].tolist()) for one, (row, mask) in zip(given, rows)]


class Rewards:
    """A RewardSource that computes `reward`."""

    def score(self, rollouts: Rollouts) -> Future[Tensor]:
        responses = [row[1:][mask].tolist() for row, mask in zip(rollouts.tokens, rollouts.response_mask)]
        scored: Future[Tensor] = Future()
        scored.set_result(torch.tensor([reward(response) for response in responses]))
        return scored

    def collect(self, asked: list[Future[Tensor]]) -> list[Tensor]:
        return [scored.result() for scored in asked]
