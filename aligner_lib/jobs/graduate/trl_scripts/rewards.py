"""The rewards of the run: its environments or its reward model, and its penalties."""

from __future__ import annotations

from functools import cached_property

import graduated
import torch
from transformers import AutoModelForSequenceClassification, GenerationConfig


def _judge_of_environments():
    """The function `judge` of environment_rewards.py, which needs Aligner Lab."""
    try:
        from environment_rewards import judge
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"the run's environments are part of Aligner Lab, and this Python has no module {error.name}: run train.py in Aligner "
            "Lab's environment, after `pip install -e '.[bench]'` in Aligner Lab's folder"
        ) from None
    return judge


class RunRewards:
    """A reward function for TRL. A response without a reward gets None, and TRL leaves the response out."""

    __name__ = "reward"

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.shaping = graduated.config()["rewards"]
        stops = GenerationConfig.from_pretrained(graduated.model_folder("end")).eos_token_id
        self.stops = set(stops) if isinstance(stops, list) else {stops}
        if (graduated.FOLDER / "environments.json").exists():
            self.judge = _judge_of_environments()

    def __call__(self, prompts, completion_ids, environment, seed, split, **_) -> list[float | None]:
        """The reward of each response, after clipping and penalties."""
        by_model = [i for i, name in enumerate(environment) if not name]
        by_program = [i for i, name in enumerate(environment) if name]
        rewards: list[float | None] = [None] * len(prompts)
        for i in by_model:
            rewards[i] = self._score([*self.tokenizer(prompts[i])["input_ids"], *completion_ids[i]])
        if by_program:
            texts = [self._text(completion_ids[i]) for i in by_program]
            picked = [[values[i] for i in by_program] for values in (environment, split, seed)]
            for i, reward in zip(by_program, self.judge(*picked, texts), strict=True):
                rewards[i] = reward
        pairs = zip(rewards, completion_ids, strict=True)
        return [None if reward is None else self._shaped(reward, ids) for reward, ids in pairs]

    @cached_property
    def _reward_model(self):
        # trust_remote_code: the folder's reward_model.py adds the constant of the rewards' scale
        folder = graduated.FOLDER / "reward_model"
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=True
        )
        return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")

    @torch.no_grad()
    def _score(self, ids: list[int]) -> float:
        model = self._reward_model
        return model(input_ids=torch.tensor([ids], device=model.device)).logits.item()

    def _text(self, ids: list[int]) -> str:
        """The text of a response without its stop token."""
        ids = ids[:-1] if ids and ids[-1] in self.stops else ids
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _shaped(self, reward: float, ids: list[int]) -> float:
        clip, buffer = self.shaping["reward_clip"], self.shaping["overlong_buffer"]
        if clip is not None:
            reward = max(-clip, min(reward, clip))
        if not ids or ids[-1] not in self.stops:
            reward -= self.shaping["missing_eos_penalty"]
        if buffer:
            beyond = len(ids) - (self.shaping["max_length"] - buffer)
            reward -= self.shaping["overlong_penalty"] * max(0, min(beyond, buffer)) / buffer
        return reward
