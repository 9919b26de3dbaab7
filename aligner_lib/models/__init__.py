"""Models: fetched, imported from Hugging Face, GGUF or NeMo, and found by name. Importing needs neither torch nor Megatron.

A model folder holds model.json (the architecture), tokenizer.json and tokenizer_config.json, weights/ (a store under
Megatron's names) and source.json (its origin and hash).
"""

from aligner_lib.models.convert import import_hf
from aligner_lib.models.fetch import MODELS, fetch
from aligner_lib.models.hash import model_hash
from aligner_lib.models.import_model import import_model
from aligner_lib.models.resolve import resolve

__all__ = ["MODELS", "fetch", "import_hf", "import_model", "model_hash", "resolve"]
