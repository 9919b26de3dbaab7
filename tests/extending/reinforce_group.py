"""An objective: REINFORCE with the group's mean as its baseline."""

from aligner_lib.algorithms.objective import PRESETS, Objective

PRESETS["reinforce_group"] = Objective(scale="none", ratio="none", normalizer="tokens", kl="none")
