"""A few programs for every length: calls are padded to the edges of buckets, and their results cut back.

:func:`bucketed` wraps a function or a module. :mod:`.core` is one call of it: :mod:`.axis` finds the length and what follows
it, :mod:`.edges` chooses the edge, :mod:`.padding` pads, :mod:`.trees` finds tensors in arguments and results, :mod:`.check`
compares with the unpadded call, :mod:`.stats` counts by the event stream. :func:`plan_buckets` plans edges.
"""

from .plan import plan_buckets
from .stats import Bucket, BucketStats
from .wrap import BucketedFunction, BucketedModule, bucketed

__all__ = ["Bucket", "BucketStats", "BucketedFunction", "BucketedModule", "bucketed", "plan_buckets"]
