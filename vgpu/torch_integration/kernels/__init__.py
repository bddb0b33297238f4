"""Operations that a GPU computes with other kernels than the CPU: attention, norms, recurrent and fused layers."""
