// The arguments of an attention kernel. AttentionArguments in launch/attention.py is the same structure.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"
#include "deep_gemm_rocm/hardware/types.h"

namespace deep_gemm_rocm {

// [batch, tokens, heads, width], or [tokens of all sequences, heads, width]; a head's values are contiguous. Strides
// are in elements. batch_stride is 0 if sequences are packed, or share the tensor.
struct HeadsTensor {
  void* data;
  int64_t batch_stride, token_stride, head_stride;

  DG_DEVICE int64_t offset(int sequence, int64_t token, int head) const {
    return sequence * batch_stride + token * token_stride + head * head_stride;
  }
};

// FP8 keys and values have no factors, a factor for each head, or a factor for each token. Factors of heads may differ
// between sequences and blocks of 128 tokens, too.
enum class Factors { kNone, kHeads, kTokens };

// Factors of FP8 values, for each head and block of tokens of a sequence, or of a page. The stride of what they don't
// depend on is 0.
struct Descales {
  const float* data;
  int64_t batch_stride, head_stride, block_stride;
  int last_block;

  // Factors of tokens, as heads that are one value wide.
  DG_DEVICE HeadsTensor of_tokens() const {
    return {const_cast<float*>(data), batch_stride, block_stride, head_stride};
  }
};

// Keys and values may be in pages of `1 << page_shift` tokens, or as many as page_size.h has compiled in, k and v
// [pages, tokens, heads, width]: those that the sequence's row of block_table names, of which the first context_lens
// tokens count.
//
// out = softmax(q · kᵀ · softmax_scale) · v for each sequence and head of q. Query i of a sequence sees the keys from
// i + offset - window_left to i + offset + window_right, where offset aligns the last query with the last key.
struct AttentionArguments {
  HeadsTensor q, k, v, out;
  Descales q_descale, k_descale, v_descale;
  float* lse;  // [batch, heads, tokens] with contiguous tokens, or null
  int64_t lse_batch_stride, lse_head_stride;
  const float* sinks;       // [heads], natural logarithms of what is added to the sums of exponentials; or null
  const int* cu_seqlens_q;  // [batch + 1], where packed sequences start and end; or null
  const int* cu_seqlens_k;
  const int* block_table;  // [batch, pages of a sequence] with contiguous pages, or null if there are no pages
  int64_t block_table_stride;
  const int* context_lens;  // [batch]
  int batch;
  int tokens_q, tokens_k;  // of a sequence, at most if it is in pages, or of all packed sequences
  int heads, kv_heads;
  int page_shift, num_pages;
  int window_left, window_right;
  float logit_scale;  // softmax_scale · log2 e
  float logit_cap;    // soft cap · log2 e, for kernels with one
  int max_workgroups;
};

}  // namespace deep_gemm_rocm
