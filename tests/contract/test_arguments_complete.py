"""Every public function and method is in a table of arguments, or is listed here with a reason.

The tables are in test_arguments.py and test_arguments_of_*.py.
"""

import inspect

import pytest

import diffbisim as db

#: Where the arguments of functions without a table are tested, or why there is nothing to ignore.
ELSEWHERE = {
    "load": "io: test_hostile_files.py loads with and without verify",
    "read_transitions": "passes its arguments to Transitions.from_frame, which has a table; test_events.py",
}
#: Methods whose arguments are subjects (a state, a path, an order), not options: another one is another question.
SUBJECTS = {
    "index", "name_of", "permuted", "with_initial", "at_lag", "until", "induced_chain", "lift", "members",
    "transfer", "take", "take_clusters", "plan", "potentials", "action", "gradient_at", "curve", "save", "law", "steps",
    "rows", "smoothed", "transitions", "skip_to", "draw", "occupancy", "transition_occupancy",
}  # fmt: skip
#: Methods with options that are tested with what they compute.
METHODS = {
    "MarkovChain.sample": "test_chain.py", "MarkovChain.sample_transitions": "test_chain.py",
    "MDP.sample": "test_mdp.py", "TimedChain.sample": "test_timed.py", "LinearGaussian.sample": "test_gaussian.py",
    "LinearGaussian.fit": "all arguments are data; test_gaussian.py",
    "DistanceResult.contributions": "test_contributions.py", "MDPResult.contributions": "test_contributions.py",
    "DistanceResult.explore": "test_explore.py", "MDPResult.explore": "test_explore.py",
    "MDPResult.value_bound": "test_actions.py", "Stream.of": "all arguments are data",
    "AbstractionResult.from_arrays": "reads a file", "FitResult.from_arrays": "reads a file",
    "ImitationResult.from_arrays": "reads a file; verify: test_hostile_files.py",
}  # fmt: skip
CLASSES = [name for name in db.__all__ if inspect.isclass(getattr(db, name))]


@pytest.fixture(scope="module")
def tabled():
    """Names of all functions and methods with a table."""
    from contract import (
        test_arguments,
        test_arguments_of_data,
        test_arguments_of_imitation,
        test_arguments_of_searches,
    )

    searches = (test_arguments_of_searches, test_arguments_of_data, test_arguments_of_imitation)
    functions = [mode[0] for module in searches for mode in module.MODES.values()]
    return {function.__qualname__ for function in [*functions, *(row[0] for row in test_arguments.TABLE)]}


def test_every_public_function_has_a_table_or_a_reason(tabled):
    functions = {name for name in db.__all__ if inspect.isfunction(getattr(db, name))}
    assert functions - tabled == set(ELSEWHERE)


def test_every_public_method_has_a_table_or_a_reason(tabled):
    missing = set()
    for name in CLASSES:
        if issubclass(getattr(db, name), (Exception, Warning)):
            continue
        for member, value in inspect.getmembers(getattr(db, name)):
            if member.startswith("_") or member in SUBJECTS or not callable(value):
                continue
            options = set(inspect.signature(value).parameters) - {"self"}
            if options and not {f"{name}.{member}", value.__qualname__} & {*tabled, *METHODS}:
                missing.add(f"{name}.{member}")
    assert not missing
