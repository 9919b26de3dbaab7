"""Notebook 13: a language model as judge, and how the judge is measured.

labelled   forty answers with a reader's labels, and forty pairs
rubric     the criteria, and the settings of a run with the judge
served     the judge: a server of this machine or elsewhere
verdicts   the recorded verdicts
"""
