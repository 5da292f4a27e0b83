"""Reports for people: how robust is my model?, as JSON, pictures and one self-contained page.

The command line (``jaxrobust report``, ``compare``, ``datasets``) is a thin layer over these
functions. A report is made of sections (:mod:`jaxrobust.report.sections`), each computed, put into
JSON (:mod:`jaxrobust.report.schema` documents it), drawn and described on its own.
"""

from jaxrobust.report.config import ThetaConfig
from jaxrobust.report.document import Context, to_json, write
from jaxrobust.report.schema import ReportError, read_report
from jaxrobust.report.theta import ThetaReport, theta_report

__all__ = [
    "Context",
    "ReportError",
    "ThetaConfig",
    "ThetaReport",
    "read_report",
    "theta_report",
    "to_json",
    "write",
]
