"""Everything that needs a GPU, as one command: ``python -m experiments.gpu --minutes 9 --out DIR``."""
