"""Catalogue of public data sets with natural institutions, for `coterie data`.

The original files stay at their sources: an entry names their addresses and digests, and a reader
that turns them into one table per institution. Only heart disease is included (CC BY 4.0).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.datasets.preprocessing import Column
from coterie.datasets.published import heart_disease

Row = Mapping[str, str]
YES_NO = ("no", "yes")


@dataclass(frozen=True)
class File:
    """File at a public source."""

    url: str  # https
    sha256: str  # of the content, hexadecimal
    size: int  # bytes

    @property
    def name(self) -> str:
        """Name of the file at the source."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Tables:
    """Tables of several institutions with the same columns."""

    columns: tuple[Column, ...]  # the label last; of survival, time and event
    rows: Mapping[str, list[tuple[str, ...]]]
    """By institution, cells in the order of `columns`; "" is a missing value."""


@dataclass(frozen=True)
class Entry:
    """Entry of the catalogue."""

    task: str  # task of a model, in one line: binary classification, or survival
    institutions: int  # number of institutions
    members: str  # kind of the institutions, in the plural
    examples: int  # number of rows over all institutions
    licence: str  # licence of the data, or what the source states about it
    source: str  # origin, with the paper or page to cite
    files: tuple[File, ...]  # to download; empty if the data are included
    read: Callable[[Sequence[str]], Tables]  # texts of the files -> tables


def _category(name: str, *categories: str) -> Column:
    return Column(name, "category", categories)


def _rows(text: str) -> Iterator[Row]:
    return csv.DictReader(io.StringIO(text), strict=True)


def _grouped(
    columns: Sequence[Column],
    rows: Iterator[tuple[str, Mapping[str, str]]],
    at_least: int = 1,
) -> Tables:
    """Group (institution, cells by column) into tables of at least `at_least` rows each."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for institution, cells in rows:
        tables.setdefault(institution, []).append(tuple(cells[column.name] for column in columns))
    kept = {name: table for name, table in tables.items() if len(table) >= at_least}
    return Tables(tuple(columns), kept)


def _heart_disease(_: Sequence[str]) -> Tables:
    """Read the included files, as FLamby does: complete patients without slope, ca and thal."""
    sex, pain = ("female", "male"), ("typical", "atypical", "non-anginal", "asymptomatic")
    ecg = ("normal", "ST-T abnormality", "hypertrophy")
    columns = (
        Column("age", unit="years"),
        _category("sex", *sex),
        _category("chest-pain", *pain),
        Column("resting-blood-pressure", unit="mm Hg"),
        Column("cholesterol", unit="mg/dl"),
        _category("fasting-sugar-above-120", *YES_NO),
        _category("resting-ecg", *ecg),
        Column("maximum-heart-rate", unit="1/min"),
        _category("exercise-angina", *YES_NO),
        Column("st-depression", unit="mm"),
        _category("diagnosis", "healthy", "ill"),
    )

    def rows() -> Iterator[tuple[str, Mapping[str, str]]]:
        for hospital, patients in heart_disease.included().items():
            for patient in patients.tolist():
                cells = [f"{value:g}" for value in patient]
                for place, names in ((1, sex), (5, YES_NO), (6, ecg), (8, YES_NO)):
                    cells[place] = names[int(patient[place])]
                cells[2] = pain[int(patient[2]) - 1]
                cells[10:] = ["ill" if patient[heart_disease.DIAGNOSIS] > 0 else "healthy"]
                yield hospital, {c.name: cell for c, cell in zip(columns, cells, strict=True)}

    return _grouped(columns, rows())


def _azpro(texts: Sequence[str]) -> Tables:
    columns = (
        _category("procedure", "PTCA", "CABG"),
        _category("sex", "female", "male"),
        _category("above-75", *YES_NO),
        _category("admission", "elective", "urgent"),
        _category("long-stay", *YES_NO),
    )
    originals = ("procedure", "sex", "age75", "admit")

    def rows() -> Iterator[tuple[str, Mapping[str, str]]]:
        for row in _rows(texts[0]):
            cells = {
                column.name: column.categories[int(row[original])]
                for column, original in zip(columns, originals, strict=False)
            }
            cells["long-stay"] = YES_NO[int(row["los"]) > 7]
            yield f"hospital-{float(row['hospital']):.1f}", cells

    return _grouped(columns, rows(), at_least=40)


def _contraception(texts: Sequence[str]) -> Tables:
    columns = (
        Column("age", unit="years above the mean"),
        _category("children", "0", "1", "2", "3+"),
        _category("urban", *YES_NO),
        _category("use", *YES_NO),
    )
    words = {"N": "no", "Y": "yes"}
    rows = (
        (
            f"district-{row['district']}",
            {
                "age": row["age"],
                "children": row["livch"],
                "urban": words[row["urban"]],
                "use": words[row["use"]],
            },
        )
        for row in _rows(texts[0])
    )
    return _grouped(columns, rows, at_least=40)


def _exams(texts: Sequence[str]) -> Tables:
    columns = (
        Column("reading-test"),
        _category("verbal-reasoning", "bottom 25%", "mid 50%", "top 25%"),
        _category("sex", "F", "M"),
        _category("above-mean", *YES_NO),
    )
    rows = (
        (
            f"school-{row['school']}",
            {
                "reading-test": row["standLRT"],
                "verbal-reasoning": row["vr"],
                "sex": row["sex"],
                "above-mean": YES_NO[float(row["normexam"]) > 0],
            },
        )
        for row in _rows(texts[0])
    )
    return _grouped(columns, rows, at_least=70)


def _loans(texts: Sequence[str]) -> Tables:
    numbers = {
        "loan_amount": "USD", "term": "months", "annual_income": "USD", "debt_to_income": "%",
        "emp_length": "years", "total_credit_limit": "USD", "total_credit_utilized": "USD",
        "inquiries_last_12m": "", "delinq_2y": "", "open_credit_lines": "",
        "account_never_delinq_percent": "%",
    }  # fmt: skip
    columns = (
        *(Column(name, unit=unit) for name, unit in numbers.items()),
        _category("homeownership", "MORTGAGE", "OWN", "RENT"),
        _category("verified_income", "Not Verified", "Source Verified", "Verified"),
        _category("rate-above-12", *YES_NO),
    )
    rows = (
        (row["state"], {**row, "rate-above-12": YES_NO[float(row["interest_rate"]) > 12]})
        for row in _rows(texts[0])
    )
    return _grouped(columns, rows, at_least=300)


def _opt(texts: Sequence[str]) -> Tables:
    numbers = {
        "Age": "years", "BMI": "kg/m2", "N.qualifying.teeth": "", "BL.GE": "", "BL..BOP": "%",
        "BL.PD.avg": "mm", "BL.CAL.avg": "mm", "BL.Calc.I": "", "BL.Pl.I": "",
    }  # fmt: skip
    answers = (
        "Black", "White", "Nat.Am", "Public.Asstce", "Hypertension", "Diabetes", "Use.Tob",
        "Use.Alc", "Prev.preg", "Live.PTB",
    )  # fmt: skip
    words = {"": "", "N": "no", "No": "no", "Y": "yes", "Yes": "yes"}
    columns = (
        *(Column(name, unit=unit) for name, unit in numbers.items()),
        *(_category(name, *YES_NO) for name in answers),
        _category("Group", "C", "T"),
        _category("Education", "LT 8 yrs", "8-12 yrs", "MT 12 yrs"),
        _category("preterm", *YES_NO),
    )

    def rows() -> Iterator[tuple[str, Mapping[str, str]]]:
        for row in _rows(texts[0]):
            cells = {name: cell.strip() for name, cell in row.items()}
            cells["preterm"] = words[cells["Preg.ended...37.wk"]]
            if cells["preterm"]:
                yield cells["Clinic"], cells | {name: words[cells[name]] for name in answers}

    return _grouped(columns, rows())


def _patients(texts: Sequence[str]) -> tuple[list[Column], list[tuple[str, Row]]]:
    """Return the features of TCGA-BRCA, and each patient's region and cells."""
    patients, sites = texts
    region = {row["TSS Code"]: row["Region"] for row in _rows(sites)}
    rows = [(region[row["pid"].split("-")[1]], row) for row in _rows(patients)]
    return [Column(name) for name in rows[0][1] if name not in ("pid", "E", "T")], rows


def _tcga_brca(texts: Sequence[str]) -> Tables:
    """Read patients who died within three years or were observed for longer, by region."""
    features, rows = _patients(texts)

    def labelled() -> Iterator[tuple[str, Row]]:
        for region, row in rows:
            is_late, is_dead = float(row["T"]) > 3 * 365, float(row["E"]) > 0
            if is_late or is_dead:
                yield region, {**row, "died-within-3-years": YES_NO[not is_late]}

    columns = (*features, _category("died-within-3-years", *YES_NO))
    return _grouped(columns, labelled(), at_least=20)


def _tcga_brca_survival(texts: Sequence[str]) -> Tables:
    """Read all patients with the time to death or to the end of observation, by region."""
    features, rows = _patients(texts)
    days = Column("days", unit="days", cuts=(365, 730, 1095, 1825, 3650))
    labelled = (
        (region, {**row, "days": row["T"], "died": YES_NO[float(row["E"]) > 0]})
        for region, row in rows
    )
    return _grouped((*features, days, _category("died", *YES_NO)), labelled, at_least=20)


_RDATASETS = (
    "https://raw.githubusercontent.com/vincentarelbundock/Rdatasets/"
    "1dcc2bf5f955cc1224a3e1307256e1fe86b68dae/csv"
)
_FLAMBY = (
    "https://raw.githubusercontent.com/owkin/FLamby/edacf54d5211520583b0133d55ac39b6fda8324b/"
    "flamby/datasets/fed_tcga_brca"
)
_TCGA_BRCA_FILES = (
    File(
        f"{_FLAMBY}/brca.csv",
        "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020",
        113184,
    ),
    File(
        f"{_FLAMBY}/centers.csv",
        "d610df2dae0203ea229c9579747ed3eb8d28e137c5378f55acc6fe6b4632bb1d",
        4274,
    ),
)

SETS: dict[str, Entry] = {
    "heart-disease": Entry(
        "diagnosis: healthy or ill",
        4,
        "hospitals",
        740,
        "CC BY 4.0",
        "UCI Machine Learning Repository; Janosi, Steinbrunn, Pfisterer, Detrano 1989, "
        "https://doi.org/10.24432/C52P4X. Rows and columns as in FLamby: complete patients, "
        "without slope, ca and thal",
        (),
        _heart_disease,
    ),
    "azpro": Entry(
        "stay of heart patients longer than 7 days",
        16,
        "hospitals",
        3572,
        "R package COUNT: GPL-2; the licence of the data is not stated",
        "Arizona Medpar 1991; Hilbe, Negative Binomial Regression, 2011. Hospitals with at least "
        "40 patients",
        (
            File(
                f"{_RDATASETS}/COUNT/azpro.csv",
                "96fe9300283f632ab29db701e87377656f53bf2ff61be57bae4f82d6f051e303",
                99355,
            ),
        ),
        _azpro,
    ),
    "contraception": Entry(
        "use of contraception",
        16,
        "districts",
        978,
        "R package mlmRev: GPL-2 or later; the licence of the data is not stated",
        "Bangladesh Fertility Survey 1988; Huq and Cleland 1990. Districts with at least 40 women",
        (
            File(
                f"{_RDATASETS}/mlmRev/Contraception.csv",
                "dd76de5f4f1fb57081b01ef0f81581cd928ad545d13feb8bf7d337d71e690034",
                47945,
            ),
        ),
        _contraception,
    ),
    "exams": Entry(
        "examination score above the mean",
        26,
        "schools",
        2305,
        "R package mlmRev: GPL-2 or later; the licence of the data is not stated",
        "Inner London schools; Goldstein, Rasbash et al., Oxford Review of Education 19, 1993. "
        "Schools with at least 70 students",
        (
            File(
                f"{_RDATASETS}/mlmRev/Exam.csv",
                "9c87dc2a85401f0589bdb1c1e95049bd86648f80ab00c73b388f6b7079e711ac",
                286514,
            ),
        ),
        _exams,
    ),
    "loans": Entry(
        "interest rate above 12 %",
        8,
        "states",
        5053,
        "R package openintro: GPL-3; the licence of the data is not stated",
        "Lending Club 2018, loans_full_schema of OpenIntro Statistics. States with at least 300 "
        "loans",
        (
            File(
                f"{_RDATASETS}/openintro/loans_full_schema.csv",
                "50561436dd63f94233e341a418f00326421b65363cb3eb527b11e2e623a5dd41",
                2531307,
            ),
        ),
        _loans,
    ),
    "opt": Entry(
        "birth before week 37",
        4,
        "clinics",
        814,
        "R package medicaldata: MIT; the licence of the data is not stated",
        "Obstetrics and Periodontal Therapy trial; Michalowicz et al., NEJM 355, 2006. Columns "
        "known at enrolment",
        (
            File(
                f"{_RDATASETS}/medicaldata/opt.csv",
                "91e87352dd984d774f871a9cf5a38db21e47d1d0d9d4307f6f79c21d78835211",
                563250,
            ),
        ),
        _opt,
    ),
    "tcga-brca": Entry(
        "death within 3 years of breast cancer",
        5,
        "regions",
        501,
        "FLamby: MIT; the data under the GDC data access policy: do not try to identify patients",
        "The Cancer Genome Atlas; Liu et al., Cell 173, 2018; prepared by FLamby (Ogier du Terrail "
        "et al. 2022). Patients who died within 3 years or were observed longer, regions with at "
        "least 20",
        _TCGA_BRCA_FILES,
        _tcga_brca,
    ),
    "tcga-brca-survival": Entry(
        "survival with breast cancer, with censored patients",
        6,
        "regions",
        1088,
        "FLamby: MIT; the data under the GDC data access policy: do not try to identify patients",
        "The Cancer Genome Atlas; Liu et al., Cell 173, 2018; prepared by FLamby (Ogier du Terrail "
        "et al. 2022). Regions with at least 20 patients",
        _TCGA_BRCA_FILES,
        _tcga_brca_survival,
    ),
}
"""Entries by name; presets/institutions has a preset of each."""
