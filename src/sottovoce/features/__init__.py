"""Public feature maps: a fixed function of one record, without a trainable parameter or a private statistic.

A linear head on features learns more at the same ε than a model of pixels, and features are computed once.
`scattering` is made of wavelets alone, `patterns` is a network that has seen generated pictures alone. A map
takes the raw picture, values in [0, 1], and gives unit norm, so that the gradient of a linear head is bounded
alike for every record. No other record enters: no privacy cost.
"""

from __future__ import annotations

from sottovoce.features.maps import FeatureMap, open_features

__all__ = ["FeatureMap", "open_features"]
