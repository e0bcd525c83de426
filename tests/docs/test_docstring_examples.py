# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of the papers' mathematics run, and print what they say."""

import doctest
import sys
from types import FunctionType

import pytest

from fedpeft import alignment, importance, scheduling
from fedpeft.alignment.low_rank import integrate_products

PUBLIC = [getattr(package, name) for package in (alignment, importance, scheduling) for name in package.__all__]
FUNCTIONS = [one for one in PUBLIC if hasattr(one, "__wrapped__") or isinstance(one, FunctionType)]
# what a registry does is shown where a plugin is written, and settings have a table of their own
WITHOUT_EXAMPLE = {"register", "names", "names_with_front", "method_settings", "solver_settings", "weighs_scores"}


@pytest.mark.parametrize("function", [*FUNCTIONS, integrate_products], ids=lambda function: function.__name__)
def test_the_example_of_a_public_function_runs(function):
    if function.__name__ in WITHOUT_EXAMPLE:
        return
    module = vars(sys.modules[function.__module__])
    (test,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=dict(module))
    assert test.examples, f"{function.__name__} has no example"
    printed = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=printed.append)
    assert printed == []
