"""
Hospital stays: who fares worse, and when?
==========================================

Clinicians follow patients through states (admitted, severe, at home, dead) and ask whether groups of them go another
way, and at which step. 2,675 people in Israel with COVID-19 in spring 2020, day by day, from Rossman, Meir et al.
(*Hospital load and increased COVID-19 related mortality in Israel*, 2021); the wheel of `pymsm` (MIT license), by the
same authors, holds the table.

*Known beforehand.* The old become severely ill and die more often, and so do men. Ages are not the same among women
and men, so that these have to be compared within ages.
"""

# %%
# The table is read where the package keeps it, without importing it. A row has the states of a patient in order and
# the days spent in each; the last one lasts until the end of the observation.

import csv
from importlib.metadata import files

import matplotlib.pyplot as plt

import diffbisim as db

NAMES = {"16": "home", "23": "mild", "4": "severe", "5": "dead"}
STATES = ["home", "mild", "severe", "dead"]
(WHERE,) = (path.locate() for path in files("pymsm") if path.name == "covid_hosp_data.csv")
with open(WHERE, encoding="utf-8") as file:
    patients = list(csv.DictReader(file))


def days(patient):
    """The state of a patient on every day."""
    path, left = [], int(patient["current_time"])
    for k in range(10):
        state, spent = NAMES.get(patient[f"new_type{k}"]), patient[f"new_time{k + 1}"]
        if state == "dead":
            return [*path, state]
        if state is None or not spent:
            return path if state is None else path + [state] * max(1, left)
        path += [state] * max(1, round(float(spent)))
        left -= round(float(spent))
    return path


def group(chosen):
    return db.Transitions.from_trajectories([days(p) for p in patients if chosen(p)], states=STATES)


def age(patient):
    """The lower end of the patient's age group."""
    return float(patient["age_group"].strip("[)").split(",")[0])


print(f"{len(patients)} patients, {sum(len(days(p)) for p in patients):,} days")

# %%
# **Do they differ, and how much?** The distance is the share of the time, the next weeks counting most (0.95 a day), in
# which two patients, one of each group, matched as well as chance allows, are in different states. The test deals whole
# stays anew to the groups: for women and men within groups of age (``strata``).

women, men = (group(lambda p, sex=sex: p["sex"] == sex) for sex in ("Female", "Male"))
ages = [[p["age_group"] for p in patients if p["sex"] == sex] for sex in ("Female", "Male")]
old, young = group(lambda p: age(p) >= 65), group(lambda p: age(p) < 65)
early, late = group(lambda p: p["first_date"] < "2020-04-01"), group(lambda p: p["first_date"] >= "2020-04-01")
found = {
    "65 and older, younger": db.estimate(old, young, "indicator", 0.95, rng=0),
    "women, men (within ages)": db.estimate(women, men, "indicator", 0.95, strata=ages, rng=0),
    "admitted in March, later": db.estimate(early, late, "indicator", 0.95, rng=0),
}
for name, e in found.items():
    print(f"{name:26s} {e.value:.3f}, 95 % interval {e.lower:.3f} to {e.upper:.3f}, p = {e.p_value:.3f}")

# %%
# **At which step?** The rows of the daily transitions that make the difference; a star marks what is more than chance
# for the largest of all rows.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="compressed")
for ax, name in zip(axes, list(found)[:2], strict=True):
    db.plot.contributions(found[name], ax=ax)
    ax.set_title(name)
print(found["women, men (within ages)"].contributions())

# %%
# **How fast does it rise with age?** Five groups at once, all pairs tested together, and what the two steps that matter
# are in each: from `mild` to `severe`, and from `severe` to death.

AGES = {"to 44": (0, 45), "45 to 54": (45, 55), "55 to 64": (55, 65), "65 to 74": (65, 75), "from 75": (75, 120)}
groups = {name: group(lambda p, lo=lo, hi=hi: lo <= age(p) < hi) for name, (lo, hi) in AGES.items()}
rates = {name: data.chain(unseen="self-loop").transition for name, data in groups.items()}
rates |= {name: data.chain(unseen="self-loop").transition for name, data in {"women": women, "men": men}.items()}
mild, severe, dead = 1, 2, 3
for name, P in rates.items():
    print(f"{name:9s} {P[mild, severe]:.2%} a day become severe, {P[severe, dead]:.2%} of the severe die")

figure, ax = plt.subplots(figsize=(6, 3.2), layout="compressed")
for x, y, style in ((mild, severe, "o-"), (severe, dead, "s-")):
    ax.plot(list(groups), [100 * rates[name][x, y] for name in groups], style, label=f"{STATES[x]} to {STATES[y]}")
ax.set(xlabel="age", ylabel="percent a day", ylim=(0, None))
ax.legend(frameon=False)
several = db.compare(groups, "indicator", 0.95, rng=0)
print(several)

# %%
# *Found.* From 65 on patients go another way than younger ones (0.26, interval 0.24 to 0.29): of those from 75 on 2.3 %
# become severe on a day, of those below 45 0.3 %, and of the severe 3.8 % against 0.8 % die. Women and men differ
# within ages, too (p = 0.001), by much less: first by the state in which they come (9 % of the men are severe then, 5 %
# of the women), then by what becomes of the severe. That more of the severe women die says little, since they are
# older: that is what strata are for. March and later months differ as well; whether by the epidemic, by treatment or by
# who was admitted, these data do not tell.
