"""Notebook 12: a judge of the learner's own, and the policy that attacks the judge.

prompts   the task
judges    a judge with holes, and the mended judge
hacks     the faults that the policy found
"""
