"""The code of exported reward models, which transformers' own classes can't represent."""

# base: the family's sequence classifier, inserted by format
REWARD_MODULE = '''"""A reward model whose rewards are standardised, with its head in float32.

    AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)

Without this file (trust_remote_code=False), every reward of transformers' own class is lower by config.json's `reward_constant`.
"""

from torch import nn
from transformers import {base}


class RewardHead(nn.Linear):
    """Computes the reward of a hidden state in float32, so that close rewards stay different under bfloat16."""

    def __init__(self, hidden_size, constant):
        super().__init__(hidden_size, 1, bias=False)
        self.constant = constant

    def forward(self, hidden):
        return super().forward(hidden.float()) + self.constant


class RewardModel({base}):
    _keep_in_fp32_modules_strict = {{"score"}}

    def __init__(self, config):
        super().__init__(config)
        self.score = RewardHead(config.get_text_config().hidden_size, config.reward_constant)
        self.post_init()
'''
