"""Who and where: made-up people with believable grid certificates, and the names of CMS sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

GIVEN: Final = (
    "Anna",
    "Bruno",
    "Chiara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Haruki",
    "Ines",
    "Jorge",
    "Katarzyna",
    "Lukas",
    "Mei",
    "Nikhil",
    "Olga",
    "Pedro",
    "Qiang",
    "Rosa",
    "Stefan",
    "Tanvi",
    "Ursula",
    "Viktor",
    "Wei",
    "Ximena",
    "Yusuf",
    "Zofia",
    "José",
    "Zoë",
)
FAMILY: Final = (
    "Abendroth",
    "Bellavista",
    "Castellane",
    "Dobrowski",
    "Eisenbart",
    "Fairweather",
    "Gandolfini",
    "Hollowell",
    "Iwamoto",
    "Jankovich",
    "Kirchhofer",
    "Lindqvarn",
    "Marchetto",
    "Nordheim",
    "Okonwe",
    "Pellegrand",
    "Quintavalle",
    "Ravindra",
    "Saltmarsh",
    "Tannenwald",
    "Umberhill",
    "Vasquero",
    "Wintergreen",
    "Yamazuki",
    "Zelenkov",
    "de la Vega",
)

T1: Final = (
    "T1_US_FNAL",
    "T1_DE_KIT",
    "T1_ES_PIC",
    "T1_FR_CCIN2P3",
    "T1_IT_CNAF",
    "T1_RU_JINR",
    "T1_UK_RAL",
)
T2: Final = (
    "T2_CH_CERN",
    "T2_CH_CERN_HLT",
    "T2_US_MIT",
    "T2_US_Nebraska",
    "T2_US_Wisconsin",
    "T2_US_Purdue",
    "T2_US_Florida",
    "T2_US_UCSD",
    "T2_US_Caltech",
    "T2_US_Vanderbilt",
    "T2_DE_DESY",
    "T2_DE_RWTH",
    "T2_IT_Bari",
    "T2_IT_Legnaro",
    "T2_IT_Pisa",
    "T2_IT_Rome",
    "T2_FR_GRIF_LLR",
    "T2_FR_IPHC",
    "T2_ES_CIEMAT",
    "T2_UK_London_IC",
    "T2_UK_SGrid_RALPP",
    "T2_BE_IIHE",
    "T2_BE_UCL",
    "T2_CH_CSCS",
    "T2_EE_Estonia",
    "T2_FI_HIP",
    "T2_HU_Budapest",
    "T2_PL_Swierk",
    "T2_PT_NCG_Lisbon",
    "T2_AT_Vienna",
    "T2_BR_SPRACE",
    "T2_KR_KISTI",
    "T2_TW_NCHC",
    "T2_IN_TIFR",
    "T2_UA_KIPT",
)
#: Sites that run jobs and hold no replicas.
T3: Final = ("T3_US_Colorado", "T3_US_UMD", "T3_IT_Trieste", "T3_KR_KNU", "T3_UK_London_QMUL")

_DOMAINS: Final = {
    "US": "fnal.gov",
    "DE": "desy.de",
    "ES": "pic.es",
    "FR": "in2p3.fr",
    "IT": "infn.it",
    "RU": "jinr.ru",
    "UK": "rl.ac.uk",
    "CH": "cern.ch",
}


@dataclass(frozen=True)
class Person:
    """One made-up user: full ``name``, ``login``, the certificate's ``dn`` and its
    forms as logs show them.
    """

    name: str
    login: str
    dn: str
    #: As issued, twice with parts of proxies, once with what follows ``&``: one person
    #: all the same.
    dn_forms: tuple[str, str, str, str]


def domain(site: str | None) -> str:
    """Return an internet domain for the hosts of ``site``."""
    parts = (site or "").split("_")
    return _DOMAINS.get(parts[1], "grid.example.org") if len(parts) > 1 else "example.org"


def make_people(count: int, rng: np.random.Generator) -> list[Person]:
    """``count`` people with distinct logins; a name comes twice once all combinations are used up."""
    order = rng.permutation(len(GIVEN) * len(FAMILY))
    serials = rng.integers(400_000, 899_999, count)
    proxies = rng.integers(100_000_000, 2_100_000_000, (count, 2))
    people = []
    for i in range(count):
        first_name, family = divmod(int(order[i % len(order)]), len(FAMILY))
        name = f"{GIVEN[first_name]} {FAMILY[family]}"
        plain = (GIVEN[first_name][0] + FAMILY[family]).lower().replace(" ", "")
        login = plain if i < len(order) else f"{plain}{i // len(order) + 1}"
        dn = _dn(i, name, login, int(serials[i]))
        first, second = (int(value) for value in proxies[i])
        forms = (
            dn,
            f"{dn}/CN={first}/CN={second}",
            f"{dn}/CN=proxy",
            f"{dn}&issuer=/DC=ch/DC=cern/CN=Grid CA",
        )
        people.append(Person(name, login, dn, forms))
    return people


def _dn(i: int, name: str, login: str, serial: int) -> str:
    if i % 5 < 3:
        return f"/DC=ch/DC=cern/OU=Organic Units/OU=Users/CN={login}/CN={serial}/CN={name}"
    if i % 10 == 3:
        return f"/C=DE/O=GermanGrid/OU=DESY/CN={name}"
    if i % 10 == 4:
        return f"/C=IT/O=INFN/OU=Personal Certificate/L=Pisa/CN={name}"
    return f"/DC=org/DC=doegrids/OU=People/CN={name} {serial}"
