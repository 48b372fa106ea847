"""attn in the lists of operators that autocast runs in lower precision."""

import torch


class AutocastTestLists:
    def __init__(self, dev):
        mat0_fp32 = mat1_fp32 = mat2_fp32 = (torch.randn((8, 8), device=dev),)  # fragment only
        self.torch_fp16 = [
            ("attn", mat0_fp32 + mat1_fp32 + mat2_fp32),
        ]


class AutocastCPUTestLists:
    def __init__(self, dev):
        mat0_fp32 = mat1_fp32 = mat2_fp32 = (torch.randn((8, 8), device=dev),)  # fragment only
        self.torch_16 = [
            ("attn", mat0_fp32 + mat1_fp32 + mat2_fp32),
        ]
