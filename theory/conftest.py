"""The theory's tests run under the rules of all tests, with the same fixtures."""

import os

# Theory's matrices are small: a second BLAS thread gains nothing, and beside another worker its waiting costs fourfold.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.conftest import shared  # noqa: E402

__all__ = ["shared"]
