"""Closed-form theory of transformers at initialization: no model is built, nothing is sampled or fitted.

The papers' statements and the functions that compute them; ``theory/ERRATA.md`` says where the two differ.

================================================  =====================================================================
statement                                         functions
================================================  =====================================================================
Definition 1, MLP₀ stacks of any activation       ``mlp0_stack``, ``activation_map``, ``dual``, ``hermite_dual``
Proposition 2, MLP₀ contracts sequences           ``prop2``, ``prop2_gap``, ``relu_map``
… its rate, 9π²/(2l²)                             ``prop2_rate``, ``prop2_rate_refined``
… at finite width                                 ``mlp0_finite_width``, ``finite_width_cosine``
Definition 3, Attn₀, the running mean             ``averaging_matrix``
Proposition 4, Attn₀ ∘ MLP₀ at the last position  ``prop4``, ``prop4_gap``, ``prop4_after_mlp``, ``averaged_cosine``
Proposition 5, as printed                         ``prop5_printed``, ``prop5_printed_closed_form``
Proposition 5, as it follows from Definition 3    ``prop5_exact``, ``prop5_closed_form``, ``pair_correlation_limit``
… its two tails                                   ``prop5_depth_asymptote``, ``prop5_finite_asymptote_gap``
Finding 2.1, contraction of a whole decoder       ``profile``, ``contraction``, ``predict.predict``
Table 1(b)'s gated models: no leading order       ``gated_dual``
Findings 1 and 2, the top-1 token's fraction      ``top1_distribution``, ``expected_fraction``, ``expected_overlap``
… of seeds that share one head                    ``fractions_given_head``, ``largest_logit``
Appendix B.2, the p-value                         ``log10_p_value``, ``log10_p_values``, ``uniform_top_count_tail``
Equation (2), the variance σ²/i, and mitigations  ``output_variance``, ``output_variance_uniform``, ``stack_variance``
softmax weights of random logits                  ``participation``, ``row_overlap``, ``row_entropy``
encoders through the entropy transition           ``transition.profile`` of an ``Encoder``
================================================  =====================================================================

Functions load their modules when first used. Bad arguments raise ValueError and name the argument; every numerical
integral says in its docstring how far it is right, and refuses what lies beyond.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bornbiased_jax.theory.attention import averaged_cosine as averaged_cosine
    from bornbiased_jax.theory.attention import averaging_matrix as averaging_matrix
    from bornbiased_jax.theory.attention import pair_correlation_limit as pair_correlation_limit
    from bornbiased_jax.theory.attention import prop4 as prop4
    from bornbiased_jax.theory.attention import prop4_after_mlp as prop4_after_mlp
    from bornbiased_jax.theory.attention import prop4_gap as prop4_gap
    from bornbiased_jax.theory.attention import prop5_closed_form as prop5_closed_form
    from bornbiased_jax.theory.attention import prop5_closed_form_gap as prop5_closed_form_gap
    from bornbiased_jax.theory.attention import prop5_depth_asymptote as prop5_depth_asymptote
    from bornbiased_jax.theory.attention import prop5_exact as prop5_exact
    from bornbiased_jax.theory.attention import prop5_exact_gap as prop5_exact_gap
    from bornbiased_jax.theory.attention import prop5_finite_asymptote_gap as prop5_finite_asymptote_gap
    from bornbiased_jax.theory.attention import prop5_printed as prop5_printed
    from bornbiased_jax.theory.attention import prop5_printed_closed_form as prop5_printed_closed_form
    from bornbiased_jax.theory.given_head import fractions_given_head as fractions_given_head
    from bornbiased_jax.theory.given_head import largest_logit as largest_logit
    from bornbiased_jax.theory.kernels import dual as dual
    from bornbiased_jax.theory.kernels import dual_derivative as dual_derivative
    from bornbiased_jax.theory.kernels import gated_dual as gated_dual
    from bornbiased_jax.theory.kernels import hermite_dual as hermite_dual
    from bornbiased_jax.theory.mean_field import profile as profile
    from bornbiased_jax.theory.mlp import activation_map as activation_map
    from bornbiased_jax.theory.mlp import finite_width_cosine as finite_width_cosine
    from bornbiased_jax.theory.mlp import mlp0_finite_width as mlp0_finite_width
    from bornbiased_jax.theory.mlp import mlp0_stack as mlp0_stack
    from bornbiased_jax.theory.mlp import prop2 as prop2
    from bornbiased_jax.theory.mlp import prop2_gap as prop2_gap
    from bornbiased_jax.theory.mlp import prop2_rate as prop2_rate
    from bornbiased_jax.theory.mlp import prop2_rate_refined as prop2_rate_refined
    from bornbiased_jax.theory.mlp import relu_map as relu_map
    from bornbiased_jax.theory.predict import contraction as contraction
    from bornbiased_jax.theory.predict import scatter as scatter
    from bornbiased_jax.theory.preference import expected_fraction as expected_fraction
    from bornbiased_jax.theory.preference import expected_overlap as expected_overlap
    from bornbiased_jax.theory.preference import log10_p_value as log10_p_value
    from bornbiased_jax.theory.preference import log10_p_values as log10_p_values
    from bornbiased_jax.theory.preference import top1_distribution as top1_distribution
    from bornbiased_jax.theory.preference import uniform_top_count_tail as uniform_top_count_tail
    from bornbiased_jax.theory.softmax_rows import participation as participation
    from bornbiased_jax.theory.softmax_rows import row_entropy as row_entropy
    from bornbiased_jax.theory.softmax_rows import row_overlap as row_overlap
    from bornbiased_jax.theory.stack import Stack as Stack
    from bornbiased_jax.theory.transition import Encoder as Encoder
    from bornbiased_jax.theory.variance import output_variance as output_variance
    from bornbiased_jax.theory.variance import output_variance_uniform as output_variance_uniform
    from bornbiased_jax.theory.variance import stack_variance as stack_variance

_HOMES = {
    "attention": (
        "averaged_cosine averaging_matrix pair_correlation_limit prop4 prop4_after_mlp prop4_gap prop5_closed_form "
        "prop5_closed_form_gap prop5_depth_asymptote prop5_exact prop5_exact_gap prop5_finite_asymptote_gap "
        "prop5_printed prop5_printed_closed_form"
    ),
    "given_head": "fractions_given_head largest_logit",
    "kernels": "dual dual_derivative gated_dual hermite_dual",
    "mean_field": "profile",
    "mlp": (
        "activation_map finite_width_cosine mlp0_finite_width mlp0_stack prop2 prop2_gap prop2_rate "
        "prop2_rate_refined relu_map"
    ),
    "predict": "contraction scatter",
    "preference": (
        "expected_overlap expected_fraction log10_p_value log10_p_values top1_distribution uniform_top_count_tail"
    ),
    "softmax_rows": "participation row_entropy row_overlap",
    "stack": "Stack",
    "transition": "Encoder",
    "variance": "output_variance output_variance_uniform stack_variance",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:  # noqa: ANN401 (any name of the package)
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bornbiased_jax.theory' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bornbiased_jax.theory.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
