"""The theory's tests run under the rules of all tests, with the same fixtures."""

from tests.conftest import shared

__all__ = ["shared"]
