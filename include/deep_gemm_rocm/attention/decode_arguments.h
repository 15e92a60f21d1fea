// The arguments of a decode kernel. DecodeArguments in launch/decode.py is the same structure.
#pragma once

#include "deep_gemm_rocm/attention/attention_arguments.h"

namespace deep_gemm_rocm {

// Keys or values of all sequences, in pages: [pages, tokens of a page, heads, width]. A page has `1 << page_shift`
// tokens, or a number that is compiled in (page_size.h). Strides are in elements.
struct PagedTensor {
  const void* data;
  int64_t page_stride, token_stride, head_stride;
};

// The numbers of the first and last partial result of one sequence and head of keys.
struct Parts {
  int first, last;
};

// Tokens of a second cache with the layout of `k`. They follow the tokens of the first cache. sequences_of_length
// neighbouring sequences share a length.
struct ExtraTokens {
  PagedTensor cache;
  const int* slots;  // [batch, most_tokens], contiguous slots
  int64_t slots_stride;
  const int* lengths;  // or null if all sequences have most_tokens
  int sequences_of_length;
  int page_shift, num_pages;
  int most_tokens;  // 0 without a second cache
};

// Attention of each sequence's last `tokens_q` tokens, see AttentionArguments. Keys and values are in the pages that
// the sequence's row of block_table names. Query i sees keys up to context_len - tokens_q + i.
struct DecodeArguments {
  HeadsTensor q, out;
  PagedTensor k, v;
  Descales q_descale, k_descale, v_descale;
  float* lse;         // [batch, heads, tokens_q] with contiguous tokens, or null
  float* max_logits;  // the same for the largest scaled logits, or null
  int64_t lse_batch_stride, lse_head_stride;
  const float* sinks;      // [heads], scaled logits that join the softmax's sum but have no value; or null
  const int* block_table;  // [batch, pages of a sequence] with contiguous pages; or slots, see IndexedTokens
  int64_t block_table_stride;
  const int* context_lens;  // [batch / sequences_of_length], or null if all sequences have most_tokens
  // Partial results, [parts, queries that share a head of keys]: rows of values (part_row.h), and their lse.
  uint8_t* split_out;
  float* split_lse;  // to base 2
  float* split_max;  // the largest logits of the parts, to base 2
  ExtraTokens extra;
  Parts* parts;      // [batch, kv_heads], unless all sequences have num_splits
  int num_splits;    // parts into which each sequence's keys are split; or 0 for pieces, see decode_schedule.h
  int split_keys;    // if above 0, about the fewest keys of a split: sequences with few keys then have fewer splits
  int num_pieces;    // workgroups for each row tile: one for each split of all sequences, or each piece of the line
  int batch, tokens_q, heads, kv_heads;
  int group;  // heads of q that share a head of keys, heads / kv_heads
  int page_shift, num_pages;
  int most_tokens;  // of a sequence: those that a row of block_table has room for
  int sequences_of_length;
  int window_left;
  float logit_scale;  // softmax_scale · log2 e
  float logit_cap;    // soft cap · log2 e, for kernels with one
  float lse_scale;    // ln 2, or 1 for an lse to base 2
  float lse_of_none;  // of a query that sees no key, an infinity
};

// The arguments from which a workgroup finds its keys. They come first, one by one, so that the hardware preloads them
// into SGPRs; see tiles/argument_loads.h. So the loads of sequence lengths and of the other arguments overlap.
struct FirstDecodeArguments {
  const int* context_lens;
  int batch, kv_heads;
  unsigned kv_heads_reciprocal;  // for quotient() in tile_scheduler.h, as the others
  int row_tiles;                 // of a sequence and head of keys
  unsigned row_tiles_reciprocal;
  int num_splits, num_pieces;
  unsigned deal_reciprocal;  // of num_pieces; with num_splits > 0, of batch · kv_heads
};

// The same for the kernel that combines parts.
struct FirstCombineArguments {
  const Parts* parts;
  const float* split_lse;
  const uint8_t* split_out;
  unsigned all_queries;
  unsigned queries, queries_reciprocal;  // those that share a head of keys
  int fixed_parts;  // number of parts of every sequence and head of keys; 0 if `parts` says which there are
};

// A decode kernel's arguments as they lie in memory.
struct DecodeKernelArguments {
  FirstDecodeArguments first;
  DecodeArguments all;
};
static_assert(sizeof(FirstDecodeArguments) == sizeof(FirstCombineArguments), "`all` is where it is for both kernels");

// All arguments, read again where this is called, so that a loop needn't keep them in registers.
DG_DEVICE const DecodeArguments& decode_arguments() { return kernel_arguments<DecodeKernelArguments>().all; }

}  // namespace deep_gemm_rocm
