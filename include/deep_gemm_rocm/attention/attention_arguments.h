// The arguments of an attention kernel. AttentionArguments in launch/attention.py is the same structure.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// [batch, tokens, heads, width] or, if sequences are packed, [tokens of all sequences, heads, width]. A head's values
// are contiguous. Strides are in elements. batch_stride is 0 if sequences are packed, or share the tensor.
struct HeadsTensor {
  void* data;
  int64_t batch_stride, token_stride, head_stride;

  DG_DEVICE int64_t offset(int sequence, int64_t token, int head) const {
    return sequence * batch_stride + token * token_stride + head * head_stride;
  }
};

// FP8 keys and values have no descale factors, one for each head, or one for each token of each head.
// Factors of heads may also differ between sequences and between blocks of 128 tokens.
enum class Factors { kNone, kHeads, kTokens };

// Descale factors of FP8 elements: one for each head and block of tokens of a sequence, or of a page. A dimension along
// which factors don't vary has stride 0.
struct Descales {
  const float* data;
  int64_t batch_stride, head_stride, block_stride;
  int last_block;

  // The factors of tokens, as a tensor of heads one element wide.
  DG_DEVICE HeadsTensor of_tokens() const {
    return {const_cast<float*>(data), batch_stride, block_stride, head_stride};
  }
};

// out = softmax(q · kᵀ · softmax_scale) · v for each sequence and head of q. Query i of a sequence sees the keys from
// i + offset - window_left to i + offset + window_right, where offset aligns the last query with the last key.
//
// Keys and values may be in pages: k and v are then [pages, tokens of a page, heads, width]. A page has
// `1 << page_shift` tokens, or a number that is compiled in (page_size.h). A sequence's row of block_table lists its
// pages, and its first context_lens tokens count.
struct AttentionArguments {
  HeadsTensor q, k, v, out;
  Descales q_descale, k_descale, v_descale;
  float* lse;  // [batch, heads, tokens] with contiguous tokens, or null
  int64_t lse_batch_stride, lse_head_stride;
  const float* sinks;       // [heads], scaled logits that join the softmax's sum but have no value; or null
  const int* cu_seqlens_q;  // [batch + 1], where packed sequences start and end; or null
  const int* cu_seqlens_k;
  const int* block_table;  // [batch, pages of a sequence] with contiguous pages, or null if there are no pages
  int64_t block_table_stride;
  const int* context_lens;  // [batch]
  int batch;
  int tokens_q, tokens_k;  // of a sequence (tokens_k is the most that its pages hold), or of all packed sequences
  int heads, kv_heads;
  int page_shift, num_pages;
  int window_left, window_right;
  float logit_scale;  // softmax_scale · log2 e
  float logit_cap;    // soft cap · log2 e, for kernels with one
  int max_workgroups;
};

}  // namespace deep_gemm_rocm
