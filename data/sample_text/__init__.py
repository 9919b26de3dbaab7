"""Hand-written English from which `data.sample_text.make_samples` builds the bundled samples."""
