"""Two certified answers to the same question."""

TOL = 1e-8  # the default, relative to the largest cost


def agrees_with_lp(result, lp):
    scale = max(result.problem.scale, 1e-300)
    assert result.lower <= lp.upper
    assert lp.lower <= result.upper
    assert abs(result.value - lp.value) <= TOL * scale + lp.gap
