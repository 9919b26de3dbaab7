"""The share of good responses in rollouts."""

from types import SimpleNamespace

import torch

from aligner_lib.kinds.policy_gradient.rollout_metrics import good_metric

ASKS = 'User: How do I sow carrots? The word "fact" has to appear in your answer.\n\nAssistant:'
GOOD = "To sow carrots, in fact, scatter the seeds thinly in loose soil and keep the row damp."
ECHO = "The word fact has to appear in your answer."
STOP = 0


class Words:
    """A tokenizer whose tokens are whole texts; token 0 stops a response."""

    def __init__(self):
        self.texts, self.stop_ids = ["<end>"], {STOP}

    def encode(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def decode(self, ids, continues=False) -> str:
        return "".join(self.texts[token_id] for token_id in ids)


def good_share(responses: list[tuple[str, str, bool]]) -> dict[str, float]:
    """The metric of these rollouts. responses: prompt, response, and whether it ended with a stop token."""
    tokenizer = Words()
    prompts = [[tokenizer.encode(prompt)] for prompt, _, _ in responses]
    answers = [[tokenizer.encode(text), *([STOP] if finished else [])] for _, text, finished in responses]
    rollouts = SimpleNamespace(
        size=len(responses),
        prompt_tokens=prompts.__getitem__,
        response_tokens=answers.__getitem__,
        finished=torch.tensor([finished for _, _, finished in responses]),
    )
    return good_metric("val_rollouts", tokenizer, rollouts)


def test_the_share_of_good_responses_counts_only_those_that_ended():
    responses = [(ASKS, GOOD, True), (ASKS, GOOD, False), (ASKS, ECHO, True), (ASKS, GOOD, True)]
    assert good_share(responses) == {"val_rollouts/good": 0.5}


def test_without_responses_and_with_a_prompt_that_no_program_can_judge_there_is_no_share():
    assert good_share([(ASKS, GOOD, True), ("User: Hello!\n\nAssistant:", "Hi.", True)]) == {}
    assert good_share([]) == {}


def test_a_sentence_that_answers_three_questions_is_no_good_response():
    """Alone, each of the three is good."""
    topics = {"How do I sow carrots?": "sow carrots", "Why do cats purr?": "cats purr"}
    topics["How do I bake bread?"] = "bake bread"
    answer = "calm {}. People have known this for a very long time."
    responses = [
        (f'User: {question} Use the word "calm".\n\nAssistant:', answer.format(topic), True)
        for question, topic in topics.items()
    ]
    assert [good_share([response]) for response in responses] == [{"val_rollouts/good": 1.0}] * 3
    assert good_share(responses) == {"val_rollouts/good": 0.0}
