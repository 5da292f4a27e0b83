"""Reports for people: how robust is my model?, as JSON, pictures and one self-contained page.

The command line (``jaxrobust report``, ``compare``, ``datasets``) is a thin layer over these
functions. A report is made of sections (:mod:`jaxrobust.report.sections`), each computed, put into
JSON (:mod:`jaxrobust.report.schema` documents it), drawn and described on its own.
"""

from jaxrobust.report.card import CardConfig, Plan, RobustnessCard, plan, preset, robustness_card
from jaxrobust.report.config import ThetaConfig
from jaxrobust.report.document import Context, to_json, write
from jaxrobust.report.schema import ReportError, read_report
from jaxrobust.report.theta import ThetaReport, theta_report

__all__ = [
    "CardConfig",
    "Context",
    "Plan",
    "ReportError",
    "RobustnessCard",
    "ThetaConfig",
    "ThetaReport",
    "plan",
    "preset",
    "read_report",
    "robustness_card",
    "theta_report",
    "to_json",
    "write",
]
