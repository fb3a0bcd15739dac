"""Views, and tensors put together along columns."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases


def shapes(i: Inputs) -> list[object]:
    x = i.x
    assert len(x) == 13
    return [
        *(
            x.shape,
            x.size(0),
            x.size(-1),
            x.dim(),
            x.ndim,
            x.numel(),
            x.dtype,
            x.is_floating_point(),
        ),
        *(x.is_contiguous(), x.t().is_contiguous(), x.stride(), x.t().stride(), i.h.shape),
        *(x.requires_grad, x.is_leaf, x.element_size(), x.nelement(), x.size(), i.mask.dtype),
    ]


CASES: dict[str, Case] = {
    "shapes": shapes,
    "view": lambda i: i.x.view(-1, 2, 3) * i.h,
    "view with rows": lambda i: i.x.view(13, 3, 2).view(13, -1),
    "view of vector": lambda i: [i.v.view(-1, 1), i.v.view(13, 1, 1), i.s.view(-1), i.s.flatten()],
    "rows and columns merge": lambda i: [i.x.view(-1), i.x.flatten() * 2, i.h.view(-1, 3)],
    "rows and columns split": lambda i: [
        i.h.reshape(-1, 3).view(13, 2, 3),
        i.x.view(-1).view(-1, 6),
    ],
    "other split": lambda i: (
        i.x.view(-1).view(13, 3, 2) + i.x.view(26, 3).view(39, 2).view(13, 3, 2)
    ),
    "columns merge with rows": lambda i: i.h.permute(1, 0, 2).reshape(26, 3).view(2, 13, 3),
    "heads merge": lambda i: i.h.transpose(0, 1).contiguous().view(-1, 3) * 2,
    "reshape": lambda i: [i.x.reshape(13, 2, 3), i.h.reshape(-1, 6), i.x.t().reshape(2, 3, 13)],
    "reshape copies": lambda i: i.h.transpose(1, 2).reshape(13, 6),
    "flatten": lambda i: [i.h.flatten(1), i.h.flatten(start_dim=1), i.x.unflatten(1, (2, 3))],
    "unflatten": lambda i: i.x.unflatten(-1, (3, -1)),
    "transpose": lambda i: [i.x.t(), i.x.T, i.h.transpose(0, 2), i.h.permute(2, 0, 1), i.h.mT],
    "t": lambda i: (i.x.t() * 2).t() + i.x.t().t(),
    "unsqueeze": lambda i: [i.x.unsqueeze(0), i.x.unsqueeze(1), i.x.unsqueeze(-1), i.x[None]],
    "squeeze": lambda i: [
        i.s.squeeze(),
        i.s.squeeze(1),
        i.s.squeeze(-1),
        i.s[None].squeeze((0, 2)),
    ],
    "squeeze rows": lambda i: i.x.squeeze(0) * 2,
    "expand": lambda i: [
        i.s.expand(13, 6),
        i.s.expand(-1, 4),
        i.v.expand(3, 13),
        i.s.expand_as(i.x),
    ],
    "split": lambda i: [*i.x.split(2, dim=1), *i.x.split([1, 5], -1), *i.x.chunk(3, dim=-1)],
    "unbind": lambda i: [*i.h.unbind(1), *i.h.unbind(-1), *i.x.tensor_split(2, dim=1)],
    "stack": lambda i: [
        torch.stack([i.x, i.y]),
        torch.stack([i.x, i.y], -1),
        torch.stack([i.x], 1),
    ],
    "cat": lambda i: [torch.cat([i.x, i.s, i.y], 1), torch.cat([i.x, i.y], dim=-1)],
    "hstack": lambda i: torch.hstack([i.x, i.s]),
    "select": lambda i: [i.x[:, 0], i.x.select(1, 2), i.h[:, 1], i.h[..., 2], i.h[:, :, -1]],
    "narrow": lambda i: [i.x.narrow(1, 1, 3), i.x[:, 1:4], i.x[..., ::2], i.h[:, :1], i.x[:, -2:]],
    "ellipsis": lambda i: [i.x[...], i.x[:], i.x[:, :], i.x[..., None], i.h[..., :2]],
    "columns by list": lambda i: [i.x[:, [0, 2]], i.x[:, torch.tensor([1, 1])], i.x[:, i.ids % 6]],
    "columns by mask": lambda i: i.x[:, torch.tensor([True, False, True, True, False, False])],
    "columns by index_select": lambda i: i.x.index_select(
        1, torch.tensor([5, 0, 5]).to(i.w.device)
    ),
    "repeat": lambda i: [i.x.repeat(1, 2), i.s.repeat(1, 3), i.x.repeat(2, 1, 1), i.x.tile(1, 2)],
    "repeat_interleave": lambda i: i.x.repeat_interleave(2, dim=1),
    "pad": lambda i: [F.pad(i.x, (0, 2)), F.pad(i.x, (1, 1), value=3.0), F.pad(i.h, (0, 1, 1, 0))],
    "flip": lambda i: [i.x.flip(1), i.x.roll(1, dims=1), i.x.flip(-1)],
    "movedim": lambda i: [i.h.movedim(0, 1), i.h.swapaxes(0, 1), torch.movedim(i.h, 2, 0)],
    "broadcast": lambda i: torch.broadcast_tensors(i.x, i.s)[1] + i.s.broadcast_to(13, 6),
    "view_as": lambda i: i.x.view_as(i.y) + i.s.expand_as(i.x) + i.h.reshape_as(i.x),
    "unsafe_chunk": lambda i: torch.split(i.h, 1, dim=1)[1].squeeze(1),
    "jumping knowledge": lambda i: torch.stack([i.x, i.y, i.x * i.y], dim=-1).max(dim=-1)[0],
    "diagonal": lambda i: torch.einsum("nhd->nh", i.h),
}


@each_place(1, 2, 3)
def test_views(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
