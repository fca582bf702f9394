"""item is _local_scalar_dense after the count of elements was checked, so it is the platform's own kernel of that."""

from __future__ import annotations

from opgraft.call_path import Instead

#: The value of a tensor's one element, as a Python number.
item = Instead("aten::_local_scalar_dense")
