"""A pretended GPU: tensors that say they lie on a device of their own, computed by the CPU.

What is placed wrongly fails as on a GPU: operations on tensors of both devices, `numpy()` of a
tensor on the device. Numbers are those of the CPU's kernels. It counts dispatched operations (about
the kernels that a GPU would launch), waits of the host for the device, and copies to it. It says
nothing about speed or memory.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from coterie.clients.engine import engine, execution

NAME = "pretended"
CPU = torch.device("cpu")
aten = torch.ops.aten
_COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
_INDEXED = {
    aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
    aten._index_put_impl_.default, aten._unsafe_index.Tensor,
}  # fmt: skip
"""Operations whose indices may lie on the CPU; they are copied to the device."""


class _Module(ModuleType):
    """Functions that torch requires of a device's module."""

    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: None)


_setup_privateuseone_for_python_backend(NAME, _Module(NAME))
DEVICE = torch.device(NAME, 0)


class OnDevice(Tensor):
    """A tensor on the device; `_held` has its numbers."""

    _held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=DEVICE,
        )  # fmt: skip
        made._held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {}, Counter())

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        copied = OnDevice(self._held.detach().clone())
        if getattr(self, "_is_param", False):
            copied._is_param = True
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied

    def untyped_storage(self) -> Any:
        return self._held.untyped_storage()

    def data_ptr(self) -> int:
        return self._held.data_ptr()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE} tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()


class PretendedGpu(TorchDispatchMode):
    """While entered, engines compute on the device.

    Attributes
    ----------
    counts : "operations", "waits" and "copies" so far; names of the operations under "names".
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.names: list[str] = []
        self._patch = pytest.MonkeyPatch()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler takes seconds

    def __enter__(self) -> PretendedGpu:
        self._patch.setattr(engine, "device_of", lambda name, gpu: DEVICE)
        self._patch.setattr(execution, "_share", lambda device: 100 << 30)
        self._overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        torch.__future__.set_overwrite_module_params_on_conversion(self._overwrites)
        torch._C._set_only_lift_cpu_tensors(False)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.counts["operations"]
        result = _dispatch(func, args, kwargs or {}, self.counts)
        if self.counts["operations"] > before:
            self.names.append(str(func))
        return result


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any], counts: Counter[str]) -> Any:
    """Check devices, run the CPU's kernel, and wrap what lies on the device."""
    flat, spec = tree_flatten((args, kwargs))
    ours = [x for x in flat if isinstance(x, OnDevice)]
    theirs = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, OnDevice)]
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    to_cpu = wanted is not None and wanted.type == "cpu" and bool(ours)
    if func is aten.copy_.default:
        to_cpu = bool(ours) and not isinstance(args[0], OnDevice)
    if ours or (wanted is not None and wanted.type == NAME):
        counts["operations"] += 1
        counts["waits"] += func is aten._local_scalar_dense.default or to_cpu
        counts["waits"] += func in (aten.nonzero.default, aten._unique2.default)
        counts["copies"] += bool(theirs) and (func in _COPIES or func in _INDEXED)
    values = args[2:3] if func in _INDEXED else ()
    indexed = func in _INDEXED and isinstance(args[0], OnDevice)
    wrong = [x for x in (values if indexed else theirs) if isinstance(x, Tensor) and x.dim()]
    if ours and func not in _COPIES and any(not isinstance(x, OnDevice) for x in wrong):
        raise RuntimeError(f"tensors on two devices, {DEVICE} and cpu, in {func}")
    plain, named = tree_unflatten([_plain(x) for x in flat], spec)
    out = func(*plain, **named)
    returns, first = func._schema.returns, func._schema.arguments[:1]
    in_place = len(returns) == 1 and bool(first)
    if in_place and all(x.alias_info and x.alias_info.is_write for x in (*returns, *first)):
        return args[0]
    if to_cpu or not (ours or (wanted is not None and wanted.type == NAME)):
        return out
    known = {id(x._held): x for x in ours}
    return tree_map(
        lambda x: (known[id(x)] if id(x) in known else OnDevice(x)) if isinstance(x, Tensor) else x,
        out,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value._held
    return CPU if isinstance(value, torch.device) and value.type == NAME else value
