"""Formatted data files (see data/) as token ids, with a count of the dropped and the cut samples.

Unusable samples are dropped, counted and reported. Samples that lose tokens are reported, too. A file without any usable sample
is an error. A key that is neither read nor metadata (`record_keys`) is also an error.
"""

from aligner_lib.datasets.load.labelled import load_labelled
from aligner_lib.datasets.load.pairs import load_pairs, load_preferences
from aligner_lib.datasets.load.prompts import load_prompts
from aligner_lib.datasets.load.sft import load_sft

__all__ = ["load_labelled", "load_pairs", "load_preferences", "load_prompts", "load_sft"]
