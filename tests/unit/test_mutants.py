"""The table of mutants fits the product as it is: `python -m tests.mutants` can make each."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_meets_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.mutated() != (ROOT / mutant.file).read_text()
    named = [word.split("::") for word in mutant.tests.split() if word.startswith("tests/")]
    assert named
    for file, *of in named:
        text = (ROOT / file).read_text()
        assert all(f" {name.partition('[')[0]}" in text for name in of), mutant.tests


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []
