"""Tables of the shapes that people bring, of invented records, and public ones, as files have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from vertinumpyro.data import load_abalone, load_adult, load_dutch, load_nltcs, load_wine

Party = str


def _choice(rng: np.random.Generator, names: list[str], scores: np.ndarray, spread: float) -> np.ndarray:
    """The names in an order that follows a score, with noise; of shares that fall."""
    shares = 1 / np.arange(1, len(names) + 1)
    ranks = pd.Series(scores + spread * rng.normal(size=len(scores))).rank(pct=True).to_numpy()
    return np.array(names)[np.searchsorted(np.cumsum(shares / shares.sum())[:-1], ranks)]


def _days(rng: np.random.Generator, start: str, position: np.ndarray, days: int) -> np.ndarray:
    passed = pd.to_timedelta((days * position).astype(int), "D")
    return pd.DatetimeIndex(pd.Timestamp(start) + passed).strftime("%Y-%m-%d").to_numpy()


def loans(num: int, seed: int = 0) -> pd.DataFrame:
    """23 columns of personal loans; the first 13 are those of a smaller file."""
    rng = np.random.default_rng(seed)
    wealth, risk, when = rng.normal(size=num), rng.normal(size=num), rng.random(num) ** 0.7
    income = np.exp(11 + 0.5 * wealth + 0.2 * rng.normal(size=num)).round(-2)
    amount = np.clip(np.exp(9.3 + 0.45 * wealth + 0.45 * rng.normal(size=num)), 1000, 40000) // 25 * 25
    score = np.clip(690 + 35 * (0.3 * wealth - risk) + 15 * rng.normal(size=num), 600, 850).round()
    grade = np.digitize(-score + 12 * rng.normal(size=num), [-740, -715, -690, -670, -650, -630])
    rate = (6 + 3.1 * grade + 0.8 * rng.normal(size=num)).clip(5).round(2)
    term = np.where(rng.random(num) < 1 / (1 + np.exp(1.5 - amount / 12000 - grade / 5)), 60, 36)
    monthly = rate / 1200
    instalment = (amount * monthly / (1 - (1 + monthly) ** -term)).round(2)
    bad = rng.random(num) < 1 / (1 + np.exp(2.9 - 0.38 * grade))
    paid = np.where(bad, rng.beta(1.5, 2, num), np.minimum(1, 1.5 * (1 - when) + rng.random(num) * 0.5))
    total = (paid * instalment * term).round(2)
    late = np.where(rng.random(num) < 1 / (1 + np.exp(2.5 - risk)), rng.exponential(30, num).round(2), 0.0)
    balance = np.exp(8.8 + 0.5 * wealth + 0.5 * risk + 0.8 * rng.normal(size=num)).round()
    lines = rng.poisson(np.exp(2.2 + 0.2 * wealth))
    return pd.DataFrame(
        {
            "loan_amount": amount,
            "term": term,
            "interest_rate": rate,
            "instalment": instalment,
            "grade": np.array(list("ABCDEFG"))[grade],
            "issued": _days(rng, "2014-01-01", when, 1800),
            "status": np.where(bad, "charged off", np.where(paid > 0.97, "fully paid", "current")),
            "annual_income": income,
            "home": _choice(rng, ["mortgage", "rent", "own", "other"], -wealth, 1.5),
            "dti": np.clip(18 + 6 * risk - 4 * wealth + 5 * rng.normal(size=num), 0, 45).round(2),
            "credit_score": score,
            "revolving_balance": np.where(rng.random(num) < 0.04, 0, balance),
            "utilisation": np.clip(45 + 22 * risk + 12 * rng.normal(size=num), 0, 110).round(1),
            "total_paid": total,
            "principal_paid": (total * (1 - rate / 60)).round(2),
            "late_fees": late,
            "recoveries": np.where(bad, (amount * rng.beta(1, 8, num)).round(2), 0.0),
            "last_payment": _days(rng, "2015-01-01", np.minimum(1, 0.7 * when + 0.5 * paid * rng.random(num)), 2000),
            "purpose": _choice(rng, ["debts", "card", "home", "car", "medical", "wedding", "move", "other"], wealth, 4),
            "employment_years": np.minimum(10, rng.exponential(4 + 2 * (wealth > 0), num)).astype(int),
            "open_accounts": lines,
            "inquiries": rng.poisson(np.exp(-0.6 + 0.3 * risk)),
            "delinquencies": rng.poisson(np.exp(-1.6 + 0.5 * risk)),
        }
    )


def claims(num: int, seed: int = 1) -> pd.DataFrame:
    """23 columns of a motor insurer and a repairer."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.gamma(9, 5, num), 18, 92).round()
    urban, careful = rng.normal(size=num), rng.normal(size=num)
    power = np.clip(np.exp(4.6 + 0.3 * rng.normal(size=num)), 40, 400).round()
    value = np.exp(9.2 + 0.9 * (np.log(power) - 4.6) + 0.35 * rng.normal(size=num)).round(-1)
    car_age = np.minimum(25, rng.exponential(7 - 2 * (value > 12000), num)).astype(int)
    bonus = np.clip(1.1 - 0.012 * (age - 18) - 0.12 * careful + 0.06 * rng.normal(size=num), 0.5, 2).round(2)
    premium = (bonus * (180 + 0.02 * value + 60 * (urban > 0.3)) * np.exp(0.1 * rng.normal(size=num))).round(2)
    count = rng.poisson(np.exp(-1.2 - 0.3 * careful + 0.25 * urban))
    cost = np.where(count > 0, np.exp(6.8 + 0.4 * np.log1p(count) + 0.9 * rng.normal(size=num)), 0).round(2)
    injured = (count > 0) & (rng.random(num) < 0.12)
    medical = np.where(injured, np.exp(7.5 + 1.1 * rng.normal(size=num)), 0).round(2)
    paid = (np.maximum(0, cost - 300) * np.where(rng.random(num) < 0.07, 0, 1) + medical).round(2)
    start, delay = rng.random(num), rng.exponential(0.03, num)
    return pd.DataFrame(
        {
            "driver_age": age,
            "sex": np.where(rng.random(num) < 0.45 + 0.05 * (careful > 0), "f", "m"),
            "region": _choice(rng, [f"R{k}" for k in range(1, 9)], urban, 0.7),
            "bonus": bonus,
            "premium": premium,
            "policy_start": _days(rng, "2018-01-01", start, 1400),
            "claims": count,
            "claim_cost": cost,
            "vehicle_value": value,
            "power": power,
            "vehicle_age": car_age,
            "mileage": (np.exp(9.4 - 0.02 * car_age + 0.4 * rng.normal(size=num) - 0.1 * urban)).round(-2),
            "fuel": _choice(rng, ["petrol", "diesel", "hybrid", "electric"], -np.log(value), 0.6),
            "paid": paid,
            "medical": medical,
            "injured": np.where(injured, "yes", "no"),
            "reported": _days(rng, "2018-02-01", np.minimum(1, start + delay), 1500),
            "settlement_days": np.where(count > 0, rng.gamma(2, 12 + 25 * injured, num).round(), 0),
            "deductible": np.where(value > 12000, 500, np.where(rng.random(num) < 0.6, 300, 150)),
            "payment": _choice(rng, ["yearly", "half-yearly", "monthly"], -premium, 200.0),
            "garage": np.where(urban + rng.normal(size=num) < 0, "yes", "no"),
            "years_insured": np.minimum(40, rng.exponential(0.25 * (age - 17), num)).astype(int),
            "labour_cost": (cost * rng.beta(6, 5, num)).round(2),
        }
    )


def stays(num: int, seed: int = 2) -> pd.DataFrame:
    """23 columns of a hospital and a sickness fund."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(58, 19, num), 0, 101).round()
    severity = 0.03 * (age - 58) + rng.normal(size=num)
    days = np.maximum(1, np.exp(1.3 + 0.45 * severity + 0.4 * rng.normal(size=num))).round()
    surgery = rng.random(num) < 1 / (1 + np.exp(0.6 - 0.5 * severity))
    lab = np.exp(4.8 + 0.6 * np.log(days) + 0.3 * rng.normal(size=num)).round(2)
    theatre = np.where(surgery, np.exp(7.9 + 0.4 * rng.normal(size=num)), 0).round(2)
    drugs = np.exp(4.5 + 0.5 * severity + 0.7 * rng.normal(size=num)).round(2)
    bill = (420 * days + lab + theatre + drugs).round(2)
    bmi = np.clip(26 + 4 * rng.normal(size=num), 15, 55).round(1)
    pressure = np.clip(118 + 0.35 * (age - 50) + 1.0 * (bmi - 26) + 11 * rng.normal(size=num), 80, 220).round()
    when = rng.random(num)
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["f", "m"], num),
            "admitted": _days(rng, "2020-01-01", when, 1400),
            "ward": _choice(rng, ["medical", "surgical", "cardiology", "intensive", "other"], severity - surgery, 0.7),
            "days": days,
            "bmi": bmi,
            "systolic": pressure,
            "diagnoses": rng.poisson(np.exp(0.8 + 0.3 * severity)),
            "bill": bill,
            "drugs": drugs,
            "theatre": theatre,
            "copayment": np.where(age < 18, 0, np.minimum(280, 10 * days)),
            "fund": _choice(rng, [f"fund {k}" for k in range(1, 7)], age, 60),
            "laboratory": lab,
            "surgery": np.where(surgery, "yes", "no"),
            "discharged": _days(rng, "2020-01-01", np.minimum(1, when + days / 1400), 1410),
            "glucose": np.exp(4.6 + 0.02 * (bmi - 26) + 0.1 * severity + 0.15 * rng.normal(size=num)).round(),
            "creatinine": np.exp(-0.1 + 0.012 * (age - 58) + 0.25 * rng.normal(size=num)).round(2),
            "emergency": np.where(rng.random(num) < 1 / (1 + np.exp(-severity)), "yes", "no"),
            "visits_before": rng.poisson(np.exp(0.9 + 0.25 * severity)),
            "care_level": np.where(age > 70, np.clip(severity + rng.normal(size=num), 0, 5).round(), 0).astype(int),
            "sick_pay": np.where((age < 65) & (days > 6), (days * 65 * rng.lognormal(0, 0.3, num)).round(2), 0.0),
            "income": np.where(rng.random(num) < 0.05, np.nan, np.exp(10.2 + 0.5 * rng.normal(size=num)).round(-2)),
        }
    )


SHAPES: Mapping[str, Callable[..., pd.DataFrame]] = {"loans": loans, "claims": claims, "stays": stays}
PUBLIC: Mapping[str, Callable[[], pd.DataFrame]] = {
    "adult": lambda: load_adult().to_frame(),
    "abalone": lambda: load_abalone().to_frame(),
    "wine": lambda: load_wine().to_frame(),
    "dutch": lambda: load_dutch().to_frame(),
    "nltcs": lambda: load_nltcs().to_frame(),
}


def split(frame: pd.DataFrame) -> dict[Party, pd.DataFrame]:
    """Half of the columns at each of two parties."""
    half, ids = (frame.shape[1] + 1) // 2, pd.Series([f"{i:07d}" for i in range(len(frame))], name="id")
    return {
        "one": pd.concat([ids, frame.iloc[:, :half].reset_index(drop=True)], axis=1),
        "other": pd.concat([ids, frame.iloc[:, half:].reset_index(drop=True)], axis=1),
    }
