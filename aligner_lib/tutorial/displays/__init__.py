"""What a notebook shows inside a cell: the library's code, a sample's loss mask, objectives, the pipeline."""
