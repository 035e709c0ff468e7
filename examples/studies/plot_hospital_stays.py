"""
Hospital stays: who fares worse, and when?
==========================================

Clinicians follow patients through states (admitted, severe, at home, dead). They ask whether groups of patients take
different paths, and at which step. The data are daily states of 2,675 people in Israel with COVID-19 in spring 2020,
from Rossman, Meir et al. (*Hospital load and increased COVID-19 related mortality in Israel*, 2021). The table is part
of the wheel of `pymsm` (MIT license), by the same authors.

*Known beforehand.* Old patients become severely ill and die more often, and so do men. Women and men in the data have
different ages, so they have to be compared within age groups.
"""

# %%
# The table is read from the installed package, without importing it. Each row contains the states of a patient in order
# and the days spent in each. The last state lasts until the end of the observation.

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
# **Do they differ, and how much?** Match two patients, one of each group, as well as chance allows. The distance is the
# share of time in which they are in different states, where the next weeks count most (0.95 per day). The test permutes
# whole stays between the groups. Women and men are permuted within age groups (``strata``).

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
# **At which step?** The figure shows the rows of the daily transitions that cause the difference. A star marks rows
# that are significant, compared with the largest of all rows under chance alone.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="compressed")
for ax, name in zip(axes, list(found)[:2], strict=True):
    db.plot.contributions(found[name], ax=ax)
    ax.set_title(name)
print(found["women, men (within ages)"].contributions())

# %%
# **How fast does the risk increase with age?** Five age groups are compared at once, with all pairs tested jointly. The
# figure shows the two most important steps in each group: from `mild` to `severe`, and from `severe` to death.

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
print(f"\n{several}")

# %%
# *Found.* Patients aged 65 and older take different paths than younger ones (0.26, interval 0.24 to 0.29). Of those
# aged 75 and older, 2.3 % become severe per day, compared with 0.3 % of those below 45. Of the severe patients, 3.8 %
# die per day, compared with 0.8 %. Women and men also differ within age groups (p = 0.001), but much less. The first
# reason is the state on arrival: 9 % of the men are severe then, and 5 % of the women. The second is the further course
# of severe patients. That more of the severe women die means little, since they are older, which is why strata are
# needed. March and later months differ as well. These data cannot tell whether the epidemic, the treatment or the
# selection of admitted patients is the reason.
