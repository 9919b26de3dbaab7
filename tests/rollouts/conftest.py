import pytest


@pytest.fixture(scope="session")
def one_rank():
    """This process as the only rank of a layout."""
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)
    parallel.initialize()
    yield
    parallel.shutdown()
