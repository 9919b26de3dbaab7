"""NeMo's archives (.nemo): read safely, one weight at a time, and written. See docs/nemo.md.

archive      a folder or a tar as files to read, hostile archives refused; window: a part of a file
pickled      a pickle as data; torch_file: a file of torch.save
rank_files, torch_dist, zarr_folder      the three ways in which weights are stored; stored: a tensor in pieces
layouts      names of weights; config, config_writer: model_config.yaml; tokenizer
source       archive → model folder; export: model folder → archive
"""
