"""Hand-written English from which `data.make_samples` builds the bundled samples."""
