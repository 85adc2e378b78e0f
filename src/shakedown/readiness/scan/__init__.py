"""A reading of the workload's own source for what will not move to the device as it is. Runs none of it."""

from .join import by_file, joined
from .results import SEVERITIES, Effort, File, Hit, Hours, Ignored, RuleText, Scan, Skipped
from .rule import Match, Rule
from .rules import RULES
from .scanner import scan, scan_folder
from .walk import root_of

__all__ = [
    "RULES",
    "SEVERITIES",
    "Effort",
    "File",
    "Hit",
    "Hours",
    "Ignored",
    "Match",
    "Rule",
    "RuleText",
    "Scan",
    "Skipped",
    "by_file",
    "joined",
    "root_of",
    "scan",
    "scan_folder",
]
