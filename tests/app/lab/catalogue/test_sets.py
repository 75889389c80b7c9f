"""Catalogue: its presets, its addresses, and its readers on small files of the sources' form."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.config.root import ROOT
from coterie.app.lab.catalogue.sets import SETS, Tables
from coterie.datasets.published.heart_disease import read_heart_disease

AZPRO = "rownames,los,procedure,sex,age75,admit,hospital"
CONTRACEPTION = "rownames,woman,district,use,livch,age,urban"
EXAMS = "rownames,school,normexam,schgend,schavg,vr,intake,standLRT,sex,type,student"


def read(name: str, *texts: str) -> Tables:
    return SETS[name].read(texts)


def lines(head: str, *rows: str) -> str:
    return "\n".join([head, *rows, ""])


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_a_preset(name: str) -> None:
    title, flat = read_items([f"institutions/{name}"])
    config = Config.from_flat({**flat, "method": "local"})
    assert title == name
    assert (config.data_dir, config.peers) == (f"data/{name}", SETS[name].institutions)
    assert f"# Needs: coterie data fetch {name}\n" in (
        ROOT / "presets" / "institutions" / f"{name}.toml"
    ).read_text("utf-8")


def test_every_preset_has_a_set() -> None:
    presets = (ROOT / "presets" / "institutions").glob("*.toml")
    assert {path.stem for path in presets} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_pinned_files_a_licence_and_a_source(name: str) -> None:
    entry = SETS[name]
    assert entry.licence
    assert entry.source
    for file in entry.files:
        assert re.fullmatch(r"https://raw\.githubusercontent\.com/.*/[0-9a-f]{40}/.*", file.url)
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)


def test_heart_disease_has_the_patients_of_the_data_set() -> None:
    """The data set standardises each hospital's numbers; so do we, and compare."""
    tables = read("heart-disease")
    source = read_heart_disease(Path())
    assert source.groups is not None
    names = [column.name for column in tables.columns]
    for peer, hospital in enumerate(source.group_names):
        rows = np.array(tables.rows[hospital])
        inputs = source.inputs[source.groups == peer]
        labels = [source.classes[target] for target in source.targets[source.groups == peer]]
        assert rows[:, -1].tolist() == labels
        for feature, name in ((0, "age"), (2, "resting-blood-pressure"), (7, "st-depression")):
            ours = rows[:, names.index(name)].astype(float)
            slope, start = np.polyfit(ours, inputs[:, feature], 1)
            assert inputs[:, feature] == pytest.approx(start + slope * ours)
        is_male = rows[:, names.index("sex")] == "male"
        assert len(np.unique(inputs[is_male, 1])) == len(np.unique(inputs[~is_male, 1])) == 1


def test_azpro_has_hospitals_with_forty_patients() -> None:
    stay = [f"{n},{7 + n % 2},1,0,1,0,5.19999980926514" for n in range(40)]
    tables = read("azpro", lines(AZPRO, *stay, "41,9,0,1,0,1,0.100000001490116"))
    assert list(tables.rows) == ["hospital-5.2"]
    assert tables.rows["hospital-5.2"][:2] == [
        ("CABG", "female", "yes", "elective", "no"),
        ("CABG", "female", "yes", "elective", "yes"),
    ]


def test_contraception_has_districts_with_forty_women() -> None:
    women = [f"{n},{n},14,{'NY'[n % 2]},3+,-5.5,Y" for n in range(40)]
    tables = read("contraception", lines(CONTRACEPTION, *women, "41,41,3,N,0,1.5,N"))
    assert list(tables.rows) == ["district-14"]
    assert tables.rows["district-14"][:2] == [
        ("-5.5", "3+", "yes", "no"),
        ("-5.5", "3+", "yes", "yes"),
    ]


def test_exams_has_schools_with_seventy_students() -> None:
    students = [f"{n},2,{n - 35},mixed,0.1,mid 50%,top 25%,0.5,F,Mxd,{n}" for n in range(70)]
    tables = read("exams", lines(EXAMS, *students, "71,3,0.5,mixed,0,mid 50%,mid 50%,0,M,Mxd,1"))
    assert list(tables.rows) == ["school-2"]
    labels = [row[-1] for row in tables.rows["school-2"]]
    assert labels == ["no"] * 36 + ["yes"] * 34  # a score of 0 is not above the mean
    assert tables.rows["school-2"][0][:3] == ("0.5", "mid 50%", "F")


def test_loans_keep_missing_values() -> None:
    names = [column.name for column in SETS["loans"].read([_loans()]).columns]
    ((first, *_),) = SETS["loans"].read([_loans()]).rows.values()
    assert dict(zip(names, first, strict=True))["emp_length"] == ""
    assert first[-1] == "no"


def _loans() -> str:
    cells = {
        "state": "OH", "loan_amount": "5000", "term": "36", "annual_income": "40000",
        "debt_to_income": "5.04", "emp_length": "", "total_credit_limit": "9",
        "total_credit_utilized": "1", "inquiries_last_12m": "1", "delinq_2y": "0",
        "open_credit_lines": "3", "account_never_delinq_percent": "100", "homeownership": "RENT",
        "verified_income": "Verified", "interest_rate": "12.0",
    }  # fmt: skip
    return lines(",".join(cells), *[",".join(cells.values())] * 300)


def test_opt_leaves_out_pregnancies_without_an_outcome() -> None:
    numbers = ["Age", "BMI", "N.qualifying.teeth", "BL.GE", "BL..BOP", "BL.PD.avg", "BL.CAL.avg"]
    numbers += ["BL.Calc.I", "BL.Pl.I"]
    answers = ["Black", "White", "Nat.Am", "Public.Asstce", "Hypertension", "Diabetes", "Use.Tob"]
    answers += ["Use.Alc", "Prev.preg", "Live.PTB"]
    head = ["Clinic", "Group", "Education", "Preg.ended...37.wk", *numbers, *answers]
    rows = [
        ["NY", "T", "8-12 yrs ", outcome, *["", *"12345678"], *["No ", "Yes", "   ", *["N  "] * 7]]
        for outcome in ("Yes", "   ", "No ")
    ]
    tables = read("opt", lines(",".join(head), *map(",".join, rows)))
    assert [row[-1] for row in tables.rows["NY"]] == ["yes", "no"]
    assert tables.rows["NY"][0][:12] == ("", *"12345678", "no", "yes", "")


def test_tcga_brca_leaves_out_patients_censored_within_three_years() -> None:
    seen = {"early death": (1, 900), "late death": (1, 2000), "lost": (0, 900), "alive": (0, 2000)}
    patients = [
        f"TCGA-BH-{n}{k},60,{event:.1f},{days:.1f}"
        for n in range(10)
        for k, (event, days) in enumerate(seen.values())
    ]
    other = "TCGA-A2-1,60,0.0,2000.0"
    sites = lines("TSS Code,Source Site,Region", "BH,Pittsburgh,Northeast", "A2,Walter Reed,West")
    tables = read("tcga-brca", lines("pid,age_at_index,E,T", *patients, other), sites)
    assert [column.name for column in tables.columns] == ["age_at_index", "died-within-3-years"]
    assert tables.rows == {"Northeast": [("60", "yes"), ("60", "no"), ("60", "no")] * 10}
