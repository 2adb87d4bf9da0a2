"""Ranking terms by a metric and removing them: faithfulness of metrics, and tasks under any intervention."""

from sinklens.masking.hooks import RankMasking, mask_by_metric
from sinklens.masking.study import faithfulness
from sinklens.masking.tasks import multiple_choice

__all__ = ["RankMasking", "faithfulness", "mask_by_metric", "multiple_choice"]
