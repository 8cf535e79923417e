"""The rule of Trained Rank Pruning, applied once, after training.

TRP keeps the least rank whose discarded energy is under a share of the layer's total. That is
`energy` with a strict inequality, and with the share free to meet a budget the two reach the same
models; the name is kept because tables of the field list it. What makes TRP more than this rule is
its training, which is not part of a rank selection.

Reference: Xu et al., TRP: Trained Rank Pruning for Efficient Deep Neural Networks, IJCAI 2020.
"""

from __future__ import annotations

from edgecompress.search.contract import Selection
from edgecompress.search.ranks import energy

SELECTION = Selection("trp", "Trained Rank Pruning's energy rule, without its training", energy.select)
