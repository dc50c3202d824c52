"""The clipped mean of per-record coefficient gradients, which a client computes before the channel.

`clipped_mean` implements the sum of Eq. 5 of the paper by the fastest of several paths that all agree with
the per-record reference; none of them lets a record contribute more than `clip` in norm, measured in float64.
"""

from sottovoce.gradients.clipping import check_outputs, check_recordwise, recordwise_logits, sensitivity
from sottovoce.gradients.mean import clipped_mean, clipped_means

__all__ = [
    "check_outputs",
    "check_recordwise",
    "clipped_mean",
    "clipped_means",
    "recordwise_logits",
    "sensitivity",
]
