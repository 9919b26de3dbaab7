"""Speed beside TRL and transformers on the same machine: `./lab bench`, or `python -m benchmarks`. See docs/performance.md."""
