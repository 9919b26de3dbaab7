"""Speed against TRL and transformers, on this machine: `./lab bench`, or `python -m benchmarks`. See docs/performance.md."""
