"""Scripts for TRL, which `aligner graduate --to trl` copies beside a run's models and data. The library does not import them."""
