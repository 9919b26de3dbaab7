"""A reward that a random model can learn in a few steps: the share of the letter e."""


def reward(prompt: str, response: str) -> dict[str, float]:
    return {"reward": response.count("e") / max(len(response), 1), "letters": float(len(response))}
